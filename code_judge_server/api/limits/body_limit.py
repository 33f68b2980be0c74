"""Bounds on request bodies: the bytes of each, the bytes of all, and the time to arrive."""

import asyncio
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from code_judge_server.api.http_errors import RejectedError, rejection
from code_judge_server.api.http_guards import OPEN_PATHS, client_of
from code_judge_server.queueing.shared_capacity import SharedCapacity

_ARRIVAL_TIMEOUT_S = 120.0
"""Limit for a body to arrive, and before that for it to get room. The largest body takes this long at 0.5 MB/s; its room is
held all the while."""
_BUSY_STATUS = {"/run_code": 504, "/run_jupyter": 504}
"""Status of a timeout by path, elsewhere 408: clients of SandboxFusion retry only after a 504."""


class LimitBody:
    """ASGI middleware that bounds the bytes of each body, and of all bodies whose requests are being answered.

    A body over `max_bytes` is a 413, with or without a `Content-Length`. If there is no room for a body, `/v1` answers 429.
    Clients of other paths do not know that answer: their bodies are not read until there is room for the announced length,
    else for `max_bytes`; a client that disconnects meanwhile keeps its turn. A body that does not arrive, or gets no room, in
    time is a 408; the paths of SandboxFusion answer 504 when there is no room.
    """

    def __init__(
        self, app: ASGIApp, *, max_bytes: int, memory: SharedCapacity, arrival_timeout_s: float = _ARRIVAL_TIMEOUT_S
    ) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._memory = memory
        self._arrival_timeout_s = arrival_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on and count its body, or refuse it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        is_patient = not scope["path"].startswith("/v1/")
        expected = _announced_bytes(scope)
        if expected == 0 or scope["path"] in OPEN_PATHS:  # no body, or none that is read
            return await self._app(scope, receive, send)
        if expected is None:
            expected = self._max_bytes if is_patient else 0
        if expected > self._max_bytes:
            return await rejection(self._too_large(), headers={"Connection": "close"})(scope, receive, send)
        body = _Body(client=client_of(scope), memory=self._memory)
        try:
            if is_patient:
                async with asyncio.timeout(self._arrival_timeout_s):
                    await self._memory.wait_until_fits(body.client, expected)
            elif not self._memory.fits(body.client, expected):
                raise self._no_memory()
            body.hold(expected)
        except TimeoutError:
            error = self._no_room(scope["path"])
            return await rejection(error, headers=error.headers)(scope, receive, send)
        except RejectedError as error:
            return await rejection(error, headers=error.headers)(scope, receive, send)
        try:
            return await self._app(scope, self._counting(body, receive), send)
        finally:
            body.hold(0)

    def _counting(self, body: "_Body", receive: Receive) -> Receive:
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

        return receive_counted

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
        error = RejectedError(f"body: did not arrive within {self._arrival_timeout_s:g} s", status_code=408)
        error.headers = {"Connection": "close"}
        return error

    def _no_room(self, path: str) -> RejectedError:
        error = RejectedError(
            f"body: no room within {self._arrival_timeout_s:g} s: {self._taken()} are taken",
            status_code=_BUSY_STATUS.get(path, 408),
        )
        error.headers = {"Connection": "close"}
        return error

    def _no_memory(self) -> RejectedError:
        error = RejectedError(f"body: {self._taken()} are taken", status_code=429)
        error.headers = {"Retry-After": "1"}
        return error

    def _taken(self) -> str:
        return f"{self._memory.used} of {self._memory.capacity} bytes for requests (request_memory_mb)"


@dataclass(slots=True, kw_only=True)
class _Body:
    """A body that is arriving, and the room held for it."""

    client: str
    memory: SharedCapacity
    held: int = 0
    arrived: int = 0
    has_arrived: bool = False

    def hold(self, size: int) -> None:
        """Hold exactly this many bytes."""
        if size > self.held:
            self.memory.take(self.client, size - self.held)
        elif size < self.held:
            self.memory.give_back(self.client, self.held - size)
        self.held = size


def _announced_bytes(scope: Scope) -> int | None:
    """Return the length of the body: 0 without a body, None for a chunked one."""
    headers = dict(scope["headers"])
    if b"transfer-encoding" in headers:
        return None
    length = headers.get(b"content-length", b"")
    return int(length) if length.isdigit() else 0
