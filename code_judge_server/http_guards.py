"""What stands before the endpoints: counts, the token, the size of a body, its JSON, and the client that has gone away."""

import asyncio
import hmac
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar

import orjson
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from code_judge_server.client_name import client_of
from code_judge_server.http_errors import RejectedError, rejection
from code_judge_server.json_bounds import refuse_costly_json
from code_judge_server.metrics import Metrics
from code_judge_server.settings import is_loopback
from code_judge_server.shared_capacity import SharedCapacity

Result = TypeVar("Result")

OPEN_PATHS = frozenset({"/ping", "/v1/ping", "/v1/ready"})
"""For probes, which have no token; they tell nothing but that the server is there."""


class CountRequests:
    """ASGI middleware that counts requests, by route and status."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note how it was answered."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started_at = time.perf_counter()
        status = 499  # the client had gone away before there was an answer

        async def send_noting_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, send_noting_status)
        finally:
            route = scope.get("route")
            path = route.path if isinstance(route, APIRoute) else "other"
            method = scope["method"] if path != "other" else "any"
            time_s = time.perf_counter() - started_at
            self._metrics.answered(method=method, path=path, status=status, time_s=time_s)


class RequireToken:
    """ASGI middleware that answers 401 to a request without the bearer token, but for `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        given = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(given, self._expected):
            return await self._app(scope, receive, send)
        error = RejectedError("authorization: the bearer token is missing or wrong", status_code=401)
        return await rejection(error, headers={"WWW-Authenticate": "Bearer"})(scope, receive, send)


class RequireLocalHost:
    """ASGI middleware for a server on loopback without a token: refuses requests under another host's name.

    A web page can have its own name lead to this machine, and would then be let in like a local program (DNS rebinding).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
        if _is_local(host):
            return await self._app(scope, receive, send)
        error = RejectedError(
            f"host: this server has no token and answers to `localhost` and its addresses only, not to `{host[:256]}`. "
            "Set CODE_JUDGE_TOKEN to serve it under other names"
        )
        return await rejection(error)(scope, receive, send)


@lru_cache(maxsize=64)
def _is_local(host: str) -> bool:
    return is_loopback(host.rpartition("]")[0].removeprefix("[") or host.partition(":")[0])


class LimitBody:
    """ASGI middleware that bounds the bytes of one body, and of all bodies whose requests are being answered.

    A body over `max_bytes` is a 413, whether its length was announced or not. One that finds no room among the others is a 429
    where the native format is spoken; elsewhere, where clients do not know that answer, it is not read until there is room.
    """

    def __init__(self, app: ASGIApp, *, max_bytes: int, memory: SharedCapacity) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._memory = memory

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, counting its body, or answer it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        client = client_of(scope)
        is_patient = not scope["path"].startswith("/v1/")
        announced = _announced_bytes(scope)
        if announced > self._max_bytes:
            return await rejection(self._too_large(), headers={"Connection": "close"})(scope, receive, send)
        if is_patient:
            await self._memory.until_fits(client, announced)
        elif not self._memory.fits(client, announced):
            error = self._no_memory()
            return await rejection(error, headers=error.headers)(scope, receive, send)
        held = 0

        async def receive_counted() -> Message:
            nonlocal held
            message = await receive()
            if size := len(message.get("body", b"")):
                if held + size > self._max_bytes:
                    raise self._too_large()
                if not is_patient and not self._memory.fits(client, size):
                    raise self._no_memory()
                self._memory.take(client, size)
                held += size
            return message

        try:
            return await self._app(scope, receive_counted, send)
        finally:
            self._memory.give_back(client, held)

    def _too_large(self) -> RejectedError:
        return RejectedError(f"body: more than {self._max_bytes} bytes (max_body_bytes)", status_code=413)

    def _no_memory(self) -> RejectedError:
        error = RejectedError(
            f"body: {self._memory.used} of {self._memory.capacity} bytes for requests (request_memory_mb) are taken",
            status_code=429,
        )
        error.headers = {"Retry-After": "1"}
        return error


def _announced_bytes(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


class _StrictRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        refuse_costly_json(body)
        return orjson.loads(body)


class StrictJsonRoute(APIRoute):
    """Route whose body is read by orjson, which refuses lone surrogates and deep nesting where `json` takes them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, given a stricter request."""
        handle = super().get_route_handler()

        async def handle_strictly(request: Request) -> Response:
            return await handle(_StrictRequest(request.scope, request.receive))

        return handle_strictly


class DirectJsonRoute(APIRoute):
    """Route whose endpoint is called as `endpoint(body, request)` and returns a `Response`.

    The body is validated straight from its bytes: that takes a sixth of the time of FastAPI's way through dictionaries, and
    refuses lone surrogates and deep nesting as well. The page of the API is made from the signature as ever.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        assert self.body_field is not None, "made for endpoints that take a body"
        model = self.body_field.field_info.annotation
        assert isinstance(model, type), "a class"
        assert issubclass(model, BaseModel), "of pydantic's"
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if content_type != "application/json":  # a page in a browser can send any other without asking
                raise RejectedError(f"content-type: `{content_type}` is not `application/json`", status_code=415)
            content = b"".join([chunk async for chunk in request.stream()])  # `body` would keep it to the end
            refuse_costly_json(content)
            try:
                body = model.model_validate_json(content)
            except ValidationError as error:
                raise RequestValidationError(
                    error.errors(include_url=False, include_context=False, include_input=False)
                ) from error
            return await endpoint(body, request)

        return handle


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, cancelling it when the client closes its connection.

    Raises:
        RejectedError: it did (499, which nobody reads).
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RejectedError("connection: closed by the client", status_code=499)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
