"""HTTP/1.1 by httptools, with bounds on what a peer may send and on how long it may take to read, and replies in one piece."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from code_judge_server.api.limits.open_connections import OpenConnections

_MAX_HEAD_BYTES = 64 * 1024
"""Most bytes of a request line with its headers, and of what stands between or after the pieces of a chunked body."""
_HEAD_TIMEOUT_S = 30.0
_LEAST_READ_BYTES = 1024 * 1024
"""A peer must read this much of a reply, or all of it, within `write_timeout_s`."""
_MOST_PIPELINED = 16
"""Requests of one connection that wait for the reply to an earlier one. Most clients send no request before the reply."""


class _TooManyPipelinedError(Exception):
    """Raised to stop the parsing of a connection's data."""


class HeadWithBody(asyncio.Transport):
    """Transport that writes the head of a reply with the first piece of its body: saves a system call and a wake-up."""

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
        """Return whether the connection is closing."""
        return self._transport.is_closing()

    def close(self) -> None:
        """Write the kept head, and close the connection."""
        if self._held:
            self._transport.write(self._held)
            self._held = b""
        self._transport.close()


class BoundedHttpProtocol(HttpToolsProtocol):
    """Protocol that refuses a head (request line and headers) that is too large. It closes a connection whose head does not
    arrive, whose reply is not read, that sends endless trailers or requests, or that must make room for another.

    httptools itself collects headers and trailers without bound; uvicorn waits without limit for a peer to read, and keeps all
    requests that come meanwhile, at a hundred times their bytes. Each server has a subclass with its own `open_connections`.
    """

    open_connections: OpenConnections
    write_timeout_s = 120.0
    _in_head = True
    _head_bytes = 0
    _bytes_without_body = 0
    """Bytes since the last piece of a body, or its end."""
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _answered: RequestResponseCycle | None = None
    """The request that is being answered, or was answered last."""

    def connection_made(self, transport: Any) -> None:
        """Start to wait for the first head."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # so that writing is paused for as long as anything is not sent
        self._expect_head()
        self.open_connections.add(self)

    def on_message_begin(self) -> None:
        """Start to wait for the rest of a head."""
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        """Stop waiting for a head."""
        self._forget_head()
        if len(self.pipeline) >= _MOST_PIPELINED:
            self.transport.abort()
            raise _TooManyPipelinedError  # stop the parser within this piece
        super().on_headers_complete()
        self.open_connections.begin(self)
        if self.scope["method"] != "HEAD" and not self.expect_100_continue:  # then the first write is a head
            self.cycle.transport = HeadWithBody(self.cycle.transport)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._bytes_without_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._bytes_without_body = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Continue with the next request, if it has arrived."""
        super().on_response_complete()
        self._end_if_all_is_sent()

    def pause_writing(self) -> None:
        """Start to wait for the peer to read."""
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        """Continue to write: the peer has read everything."""
        super().resume_writing()
        self._forget_writing()
        self._end_if_all_is_sent()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop all timers, and forget the connection."""
        self._forget_head()
        self._forget_writing()
        self.open_connections.remove(self)
        super().connection_lost(exc)
        if (
            self._answered is not None and not self._answered.response_complete
        ):  # uvicorn only notifies the last of a pipeline
            self._answered.disconnected = True
            self._answered.message_event.set()

    def abort(self) -> None:
        """Close the connection at once; unsent data is dropped."""
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the data, unless the head gets too large."""
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES + len(data):  # the piece that ends a head may hold much of the body
                self.send_400_response("Request head too large.")
                return
        self._bytes_without_body += len(data)
        super().data_received(data)
        if self._bytes_without_body > _MAX_HEAD_BYTES and not self._in_head:
            self.transport.abort()  # a reply has begun already

    def _unsupported_upgrade_warning(self) -> None:
        """Log nothing: any peer could fill the log, and uvicorn's advice does not apply here."""

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
