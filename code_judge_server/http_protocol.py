"""HTTP/1.1 by httptools, with bounds on what a peer may send before it is known who it is."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_MAX_HEAD_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 30.0


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
