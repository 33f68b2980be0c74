"""Messages between the server and a slot: a JSON header and the byte strings it announces.

On the wire: `PREFIX` (length of the header, length of all byte strings together), the header, the byte strings one after the
other. Each job gets exactly one outcome, even if `CANCEL` was sent meanwhile. A `live` job's output comes before it, in
messages of the kind `output`.
"""

import json
import socket
import struct
from typing import Any

PREFIX = struct.Struct("!II")

Header = dict[str, Any]
"""Plain JSON values, keyed as `program.Job` and `program.JobOutcome` name them."""


def pack(header: Header, blobs: list[bytes]) -> bytes:
    """Return one message; the sizes of `blobs` travel in the header."""
    text = json.dumps({"header": header, "sizes": [len(blob) for blob in blobs]}).encode()
    return b"".join([PREFIX.pack(len(text), sum(map(len, blobs))), text, *blobs])


CANCEL = pack({"kind": "cancel"}, [])


def unpack(text: bytes, payload: bytes) -> tuple[Header, list[bytes]]:
    """Return the header and the byte strings of a message without its prefix."""
    message = json.loads(text)
    blobs, start = [], 0
    for size in message["sizes"]:
        blobs.append(payload[start : start + size])
        start += size
    return message["header"], blobs


def receive(sock: socket.socket) -> tuple[Header, list[bytes]] | None:
    """Return the next message, or None if the peer has closed."""
    prefix = _receive_exactly(sock, PREFIX.size)
    if prefix is None:
        return None
    text_size, payload_size = PREFIX.unpack(prefix)
    body = _receive_exactly(sock, text_size + payload_size)
    return None if body is None else unpack(body[:text_size], body[text_size:])


def _receive_exactly(sock: socket.socket, size: int) -> bytes | None:
    received = bytearray(size)
    view = memoryview(received)
    while view:
        count = sock.recv_into(view)
        if count == 0:
            return None
        view = view[count:]
    return bytes(received)
