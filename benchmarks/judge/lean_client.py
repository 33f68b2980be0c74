"""An HTTP client that takes next to no CPU time, so that a benchmark measures the judge.

For `overhead.py`, whose generator shares the cores with the judge; everything else uses `client.py`.
"""

import asyncio
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

_OK = 200


class LeanError(Exception):
    """An answer that is not a 200, or a connection that was closed."""


class _Connection(asyncio.Protocol):
    """One keep-alive connection, for one request at a time; the methods `on_...` are called by the parser."""

    def __init__(self) -> None:
        self._answer: asyncio.Future[bytes] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []

    def ask(self, transport: asyncio.WriteTransport, request: bytes) -> asyncio.Future[bytes]:
        """Send a request; the result is the body of its answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._body = []
        transport.write(request)
        return self._answer

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        """Take a part of the answer."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Give the answer to its waiter."""
        assert self._answer is not None, "an answer comes after its request"
        status, body = self._parser.get_status_code(), b"".join(self._body)
        if status == _OK:
            self._answer.set_result(body)
        else:
            self._answer.set_exception(LeanError(f"status {status}: {body[:300]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(LeanError(f"the connection was closed: {exc}"))


@dataclass(slots=True)
class LeanClient:
    """A client with as many connections to one server as there are simultaneous requests."""

    url: str
    _free: list[tuple[asyncio.WriteTransport, _Connection]] = field(default_factory=list)

    async def get(self, path: str) -> bytes:
        """Return the body of an endpoint."""
        return await self._ask(f"GET {path} HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n\r\n".encode())

    async def post(self, path: str, body: bytes) -> bytes:
        """Send JSON and return the body of the answer."""
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {urlsplit(self.url).netloc}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return await self._ask(head.encode() + body)

    def close(self) -> None:
        """Close all connections; no request is under way."""
        for transport, _ in self._free:
            transport.close()

    async def _ask(self, request: bytes) -> bytes:
        if self._free:
            transport, connection = self._free.pop()
        else:
            address = urlsplit(self.url)
            transport, connection = await asyncio.get_running_loop().create_connection(
                _Connection, address.hostname or "", address.port or 80
            )
        body = await connection.ask(transport, request)
        self._free.append((transport, connection))
        return body
