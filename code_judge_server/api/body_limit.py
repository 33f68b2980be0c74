"""Bounds on the bodies of requests: the bytes of one, those of all together, and how long one may take to arrive."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from code_judge_server.api.client_name import client_of
from code_judge_server.api.http_errors import RejectedError, rejection
from code_judge_server.queueing.shared_capacity import SharedCapacity

_ARRIVAL_TIMEOUT_S = 120.0
"""The largest body takes this long at half a megabyte a second; room is held for it all the while."""


class LimitBody:
    """ASGI middleware that bounds the bytes of one body, and of all bodies whose requests are being answered.

    A body over `max_bytes` is a 413, whether its length was announced or not. One that finds no room among the others is a 429
    where the native format is spoken; elsewhere, where clients do not know that answer, it is not read until there is room for
    all of it, or for `max_bytes` where it did not say. One that does not arrive in time is a 408.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, memory: SharedCapacity, arrival_timeout_s: float = _ARRIVAL_TIMEOUT_S
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._memory = memory
        self._arrival_timeout_s = arrival_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        is_patient = not scope["path"].startswith("/v1/")
        expected = _announced_bytes(scope)
        if expected is None:
            expected = self._max_bytes if is_patient else 0
        if expected > self._max_bytes:
            return await rejection(self._too_large(), headers={"Connection": "close"})(scope, receive, send)
        body = _Body(client=client_of(scope), memory=self._memory)
        if is_patient:
            await self._memory.until_fits(body.client, expected)
        elif not self._memory.fits(body.client, expected):
            error = self._no_memory()
            return await rejection(error, headers=error.headers)(scope, receive, send)
        body.hold(expected)
        arrive_by = asyncio.get_running_loop().time() + self._arrival_timeout_s

        async def receive_counted() -> Message:
            if body.has_arrived:
                return await receive()
            try:
                async with asyncio.timeout_at(arrive_by):
                    message = await receive()
            except TimeoutError as error:
                raise self._too_slow() from error
            self._count(body, message)
            return message

        try:
            return await self._app(scope, receive_counted, send)
        finally:
            body.hold(0)

    def _count(self, body: "_Body", message: Message) -> None:
        body.arrived += len(message.get("body", b""))
        if body.arrived > self._max_bytes:
            raise self._too_large()
        if body.arrived > body.held:
            if not self._memory.fits(body.client, body.arrived - body.held):
                raise self._no_memory()
            body.hold(body.arrived)
        if not message.get("more_body", False):
            body.has_arrived = True
            body.hold(body.arrived)

    def _too_large(self) -> RejectedError:
        return RejectedError(f"body: more than {self._max_bytes} bytes (max_body_bytes)", status_code=413)

    def _too_slow(self) -> RejectedError:
        error = RejectedError(f"body: not there after {self._arrival_timeout_s:g} s", status_code=408)
        error.headers = {"Connection": "close"}
        return error

    def _no_memory(self) -> RejectedError:
        error = RejectedError(
            f"body: {self._memory.used} of {self._memory.capacity} bytes for requests (request_memory_mb) are taken",
            status_code=429,
        )
        error.headers = {"Retry-After": "1"}
        return error


@dataclass(slots=True, kw_only=True)
class _Body:
    """A body on its way, and the room that is held for it."""

    client: str
    memory: SharedCapacity
    held: int = 0
    arrived: int = 0
    has_arrived: bool = False

    def hold(self, size: int) -> None:
        """Hold so many bytes, no more and no fewer."""
        if size > self.held:
            self.memory.take(self.client, size - self.held)
        elif size < self.held:
            self.memory.give_back(self.client, self.held - size)
        self.held = size


def _announced_bytes(scope: Scope) -> int | None:
    """Return the length of the body, 0 if there is none, nothing if only its end will tell."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() else 0
