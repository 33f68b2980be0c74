"""HTTP/1.1 by httptools, with bounds on what a peer may send before it is known who it is and on how long it may take to read
its reply, and replies in one piece.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from code_judge_server.api.open_connections import OpenConnections

_MAX_HEAD_BYTES = 64 * 1024
"""Of a request line with its headers; and of what stands between the pieces of a chunked body, or after it."""
_HEAD_TIMEOUT_S = 30.0
_LEAST_READ_BYTES = 1024 * 1024
"""A peer that has not read so much of a reply after `write_timeout_s`, nor all of it, reads no more."""
_MOST_PIPELINED = 16
"""Requests of one connection that wait for the reply to an earlier one. Hardly any client sends one before it has its reply."""


class _TooManyPipelinedError(Exception):
    """Ends the parsing of what a connection has sent."""


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
    """Refuses a head (request line and headers) that is too large, and closes a connection whose head does not arrive, whose
    reply is not read, that sends trailers or requests without end, or that has to go for another.

    httptools itself collects headers and trailers without end; uvicorn waits without end for a peer to read, and keeps whatever
    requests come meanwhile, a hundred times their bytes. Each server has a subclass, with its own `open_connections`.
    """

    open_connections: OpenConnections
    write_timeout_s = 120.0
    _in_head = True
    _head_bytes = 0
    _bytes_without_body = 0
    """That came since the last piece of a body, or its end."""
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None
    """The request that is being answered, or was last."""

    def connection_made(self, transport: Any) -> None:
        """Expect the first head."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that writing is paused for as long as anything is not sent
        self._expect_head()
        self.open_connections.add(self)

    def on_message_begin(self) -> None:
        """Expect the rest of a head."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Expect no head any more."""
        self._forget_head()
        if len(self.pipeline) >= _MOST_PIPELINED:
            self.transport.abort()
            raise _TooManyPipelinedError  # the parser is to take no more of the same piece
        super().on_headers_complete()
        self.open_connections.begin(self)
        if self.scope["method"] != "HEAD" and not self.expect_100_continue:  # what is written first is a head then
            self.cycle.transport = HeadWithBody(self.cycle.transport)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Expect nothing more of this request."""
        self._bytes_without_body = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Go on to the next request, if it is there."""
        super().on_response_complete()
        self._end_if_all_is_sent()

    def pause_writing(self) -> None:
        """Expect the peer to read."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Go on writing: the peer has read all."""
        super().resume_writing()
        self._forget_writing()
        self._end_if_all_is_sent()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self._forget_head()
        self._forget_writing()
        self.open_connections.remove(self)
        super().connection_lost(exc)
        if (
            self._answered is not None and not self._answered.response_complete
        ):  # uvicorn tells the last of a pipeline only
            self._answered.disconnected = True
            self._answered.message_event.set()

    def abort(self) -> None:
        """Close the connection at once, whatever is not sent yet."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse what came in, unless it makes the head too large."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES + len(data):  # the piece that ends a head may hold much of the body
                self.send_400_response("Request head too large.")
                return
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._bytes_without_body > _MAX_HEAD_BYTES and not self._in_head:
            self.transport.abort()  # there is a reply, or part of one, already

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: whoever can connect could fill the log, and what uvicorn advises would serve nobody here."""

    def _end_if_all_is_sent(self) -> None:
        if self.cycle is not None and self.cycle.response_complete and not self.flow.write_paused:
            self.open_connections.end(self)

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

    def _expect_reading(self) -> None:
        enough = self.transport.get_write_buffer_size() - _LEAST_READ_BYTES
        self._write_timer = self.loop.call_later(self.write_timeout_s, self._abort_unless_read, enough)

    def _abort_unless_read(self, enough: int) -> None:
        if self.transport.get_write_buffer_size() > enough:
            self.transport.abort()
        else:
            self._expect_reading()

    def _forget_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
