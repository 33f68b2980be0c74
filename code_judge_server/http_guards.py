"""What stands before the endpoints: the token, the size of a body, its JSON, and the client that has gone away."""

import asyncio
import hmac
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from code_judge_server.http_errors import RejectedError, rejection

Result = TypeVar("Result")


class RequireToken:
    """ASGI middleware that answers 401 to a request without the bearer token."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        error = RejectedError("authorization: the bearer token is missing or wrong", status_code=401)
        return await rejection(error, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)


class LimitBody:
    """ASGI middleware that answers 413 to a body over `max_bytes`, whether its length was announced or not."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        error = RejectedError(f"body: more than {self._max_bytes} bytes (max_body_bytes)", status_code=413)
        announced = dict(scope["headers"]).get(b"content-length", b"0")
        if announced.isdigit() and int(announced) > self._max_bytes:
            return await rejection(error, headers={"Connection": "close"})(scope, receive, send)
        received = 0

        async def receive_counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._max_bytes:
                raise error
            return message

        return await self._app(scope, receive_counted, send)


class _StrictRequest(Request):
    async def json(self) -> Any:
        return orjson.loads(await self.body())


class StrictJsonRoute(APIRoute):
    """Route whose body is read by orjson, which refuses lone surrogates and deep nesting where `json` takes them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a stricter request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, cancelling it when the client closes its connection.

    Raises:
        RejectedError: it did (499, which nobody reads).
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RejectedError("connection: closed by the client", status_code=499)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
