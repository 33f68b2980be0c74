"""Transfer of weights to another machine, by TCP into memory that the engines there share.

The server reads the publisher's buffer (`buffer`), so that the publisher takes no part. The bytes go over a few connections
at once, from page cache to socket without a copy. Like those of the collectives, they are not encrypted; readers
authenticate by a secret.
"""

import hmac
import os
import secrets
import socket
import struct
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

from agentrl.errors import EngineDeadError, EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.transports.buffer import new_buffer, open_buffer

_NUM_CONNECTIONS = 4
"""A single connection does not fill a fast network."""
_TIMEOUT_S = 60.0
"""Longest wait for a byte, before the network counts as lost."""
_SECRET_BYTES = 32
_RANGE = struct.Struct("!QQ")
"""Request that follows the secret on a connection: first byte and number of bytes."""
_BUCKET_BYTES = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Address and secret of a server. Example: `Served(host="10.0.0.1", port=40213, secret=...)`."""

    host: str
    port: int
    secret: bytes = field(repr=False)


class WeightServer:
    """Server that sends the weights of a publisher on this machine to readers on others."""

    def __init__(self, host: str) -> None:
        """Listen at `host`, this machine's address for other machines."""
        self._socket = socket.create_server((host, 0), backlog=128)
        self._served = Served(host=host, port=self._socket.getsockname()[1], secret=secrets.token_bytes(_SECRET_BYTES))
        self._source: WeightSource | None = None
        threading.Thread(target=self._accept, name="weight-server", daemon=True).start()

    def serve(self, source: WeightSource) -> Served:
        """Serve `source` from now on; it must not change until everybody has read it."""
        self._source = source
        return self._served

    def _accept(self) -> None:
        while True:
            connection, _ = self._socket.accept()
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        """Send the requested range; on any failure close the connection early, which the reader detects."""
        with connection, suppress(OSError, EngineError):
            connection.settimeout(_TIMEOUT_S)
            asked = bytearray(_SECRET_BYTES + _RANGE.size)
            _receive(connection, memoryview(asked))
            source = self._source
            if source is None or not hmac.compare_digest(bytes(asked[:_SECRET_BYTES]), self._served.secret):
                return
            first, count = _RANGE.unpack_from(asked, _SECRET_BYTES)
            fd = open_buffer(source)
            with os.fdopen(fd, "rb", buffering=0) as shared:
                connection.sendfile(shared, first, count)


class WeightReader:
    """One copy of another machine's weights, in memory that the processes of this machine share."""

    def __init__(self) -> None:
        self._buffer = new_buffer()

    def read(self, source: WeightSource, served: Served) -> WeightSource:
        """Copy `source` from its machine, over the previous version; return the copy's source, valid until the next call.

        Raises:
            EngineDeadError: the network or the other machine is gone.
        """
        self._buffer.truncate(source.size_bytes)
        share = -(-source.size_bytes // _NUM_CONNECTIONS)
        ranges = [(first, min(share, source.size_bytes - first)) for first in range(0, source.size_bytes, share or 1)]
        try:
            with ThreadPoolExecutor(_NUM_CONNECTIONS, "weight-reader") as threads:
                list(threads.map(lambda part: self._read_range(served, *part), ranges))
        except OSError as error:
            raise EngineDeadError(
                f"weights from {served.host}:{served.port}: {error}; the machine of the actor cannot be reached from this one, "
                "or its publisher is gone"
            ) from error
        return replace(source, address=f"/proc/{os.getpid()}/fd/{self._buffer.fileno()}")

    def _read_range(self, served: Served, first: int, count: int) -> None:
        bucket = bytearray(min(count, _BUCKET_BYTES))
        with socket.create_connection((served.host, served.port), timeout=_TIMEOUT_S) as connection:
            connection.sendall(served.secret + _RANGE.pack(first, count))
            while count:
                part = memoryview(bucket)[: min(count, len(bucket))]
                _receive(connection, part)
                written = os.pwrite(self._buffer.fileno(), part, first)
                assert written == len(part), "memory takes all of a small write"
                first, count = first + written, count - written


def _receive(connection: socket.socket, into: memoryview) -> None:
    """Fill `into`."""
    while into:
        received = connection.recv_into(into)
        if received == 0:
            raise ConnectionError("the connection was closed early")
        into = into[received:]
