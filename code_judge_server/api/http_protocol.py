"""HTTP/1.1 by httptools, with bounds on what a peer may send before it is known who it is, and replies in one piece."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 30.0


class HeadWithBody(asyncio.Transport):
    """Writes the head of a reply with the first piece of its body: one system call less, and the client wakes up once.

    Args:
        transport: What it writes to.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        super().__init__()
        self._transport = transport
        self._held: bytes | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep the head, which comes first; write the rest."""
        if self._held is None:
            self._held = bytes(data)
        elif self._held:
            self._transport.write(self._held + data)
            self._held = b""
        else:
            self._transport.write(data)

    def is_closing(self) -> bool:
        """Tell whether the connection is about to be closed."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Write what was kept, and close the connection."""
        if self._held:
            self._transport.write(self._held)
            self._held = b""
        self._transport.close()


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses a head (request line and headers) that is too large, and closes a connection whose head does not arrive.

    httptools itself collects headers without end.
    """

    _in_head = True
    _head_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Expect the first head."""
        super().connection_made(transport)
        self._expect_head()

    def on_message_begin(self) -> None:
        """Expect the rest of a head."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Expect no head any more."""
        self._forget_head()
        super().on_headers_complete()
        if self.scope["method"] != "HEAD" and not self.expect_100_continue:  # what is written first is a head then
            self.cycle.transport = HeadWithBody(self.cycle.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._forget_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came in, unless it makes the head too large."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES + len(data):  # the piece that ends a head may hold much of the body
                self.send_400_response("Request head too large.")
                return
        super().data_received(data)

    def _expect_head(self) -> None:
        self._in_head = True
        self._head_bytes = 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(_HEAD_TIMEOUT_S, self._close_without_head)

    def _forget_head(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _close_without_head(self) -> None:
        self._head_timer = None
        if not self.transport.is_closing():
            self.transport.close()
