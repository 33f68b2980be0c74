"""Guards in front of the endpoints: request counts, the token, JSON validation, and disconnected clients."""

import asyncio
import hmac
import logging
import math
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from code_judge_server.api.http_errors import RejectedError, rejection, wrong_fields_error
from code_judge_server.api.limits.json_bounds import (
    MANY_SUBMISSIONS,
    ONE_SUBMISSION,
    refuse_costly_json,
    validated_by_items,
)
from code_judge_server.api.limits.sent_replies import HeldReply, hold_until_sent
from code_judge_server.metrics import Metrics
from code_judge_server.settings import is_loopback

logger = logging.getLogger(__name__)


_MAX_CHARS = 256


def client_of(scope: Scope) -> str:
    """Return the header `Judge-Client`, else the address of the peer."""
    for name, value in scope["headers"]:
        if name == b"judge-client" and value:
            return value.decode("latin-1")[:_MAX_CHARS]
    peer = scope.get("client")
    return peer[0] if peer else ""


Result = TypeVar("Result")

_LARGE_BODY_BYTES = 1024 * 1024
"""Larger bodies are scanned in a thread."""
_VALUES_AT_ONCE = 2**16
"""Batches with more values are validated in pieces: 25 % slower, but other requests wait at most 0.2 s."""
_BYTES_OF_A_VALUE = 1024
"""Text of this length takes about as long to validate as one value."""

_REFUSALS_LOGGED_EVERY_S = 60.0

OPEN_PATHS = frozenset({"/ping", "/v1/ping", "/v1/ready"})
"""Paths for probes, which have no token; they only tell that the server is up."""


class CountRequests:
    """ASGI middleware that counts requests, by route and status."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count its reply."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        started_at = time.perf_counter()
        status = 499  # the client disconnected before the answer

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
            self._metrics.count_request(method=method, path=path, status=status, time_s=time_s)


class RequireToken:
    """ASGI middleware that answers 401 to a request without the bearer token, except for `OPEN_PATHS`.

    The log gets one line a minute at most, with the number of refusals since the last one.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app = app
        self._expected = f"Bearer {token}".encode()
        self._num_refused = 0
        self._next_line_at = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            return await self._app(scope, receive, send)
        authorization = dict(scope["headers"]).get(b"authorization", b"")
        if hmac.compare_digest(authorization, self._expected):
            return await self._app(scope, receive, send)
        self._log_refusal(scope, "wrong" if authorization else "missing")
        error = RejectedError("authorization: the bearer token is missing or wrong", status_code=401)
        headers = {"WWW-Authenticate": "Bearer"}
        if not {b"content-length", b"transfer-encoding"} & {name for name, _ in scope["headers"]}:
            # A client without a token must not keep a connection. With a body on its way, closing could lose this answer.
            headers["Connection"] = "close"
        return await rejection(error, headers=headers)(scope, receive, send)

    def _log_refusal(self, scope: Scope, fault: str) -> None:
        self._num_refused += 1
        if time.monotonic() < self._next_line_at:
            return
        peer = scope.get("client")
        address = peer[0] if peer else "an unknown address"
        logger.warning("authorization: token %s, refused requests: %d, last from %s", fault, self._num_refused, address)
        self._num_refused, self._next_line_at = 0, time.monotonic() + _REFUSALS_LOGGED_EVERY_S


class RequireLocalHost:
    """ASGI middleware for a server on loopback without a token: refuses requests for another host name.

    A web page can let its own name resolve to this machine, and would be treated as a local program (DNS rebinding).
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
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


class _TypedRequest(Request):
    """Request whose `json` is an instance of the endpoint's model, which FastAPI passes on unchanged."""

    def __init__(self, scope: Scope, receive: Receive, *, model: type[BaseModel]) -> None:
        super().__init__(scope, receive)
        self._model = model

    async def json(self) -> BaseModel:
        return await _validated(self._model, await self.body())


class StrictJsonRoute(APIRoute):
    """Route that validates the body directly from its bytes, and logs one line per request.

    This refuses lone surrogates and deep nesting, which `json` accepts.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler with a stricter request."""
        handle = super().get_route_handler()
        if self.body_field is None:
            return handle
        model = _model_of(self)

        async def handle_strictly(request: Request) -> Response:
            _refuse_other_than_json(request)
            started_at = time.perf_counter()
            held = hold_until_sent(request)
            try:
                response = await handle(_TypedRequest(request.scope, request.receive, model=model))
            except BaseException:
                held.close()
                raise
            time_s = time.perf_counter() - started_at
            extra = {"client": client_of(request.scope), "time_s": round(time_s, 4), "status": response.status_code}
            logger.info("%s: %d in %.3f s", request.scope["path"], response.status_code, time_s, extra=extra)
            return HeldReply(response, held)

        return handle_strictly


class DirectJsonRoute(APIRoute):
    """Route whose endpoint is called as `endpoint(body, request)` and returns a `Response`.

    This takes a sixth of the time of FastAPI's dependencies. The body is validated as by `StrictJsonRoute`; the OpenAPI page is
    made from the signature as usual.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler."""
        model = _model_of(self)
        endpoint = self.endpoint

        async def handle(request: Request) -> Response:
            _refuse_other_than_json(request)
            content = b"".join([chunk async for chunk in request.stream()])  # `body` would keep it to the end
            return await endpoint(await _validated(model, content), request)

        return handle


def _refuse_other_than_json(request: Request) -> None:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":  # a page in a browser can send any other without asking
        raise RejectedError(f"content-type: `{content_type}` is not `application/json`", status_code=415)


def _model_of(route: APIRoute) -> type[BaseModel]:
    assert route.body_field is not None, "made for endpoints that take a body"
    model = route.body_field.field_info.annotation
    assert isinstance(model, type), "a class"
    assert issubclass(model, BaseModel), "of pydantic's"
    return model


async def _validated(model: type[BaseModel], content: bytes) -> BaseModel:
    """Return the body as an instance of the endpoint's model.

    Raises:
        RejectedError: the body is not valid.
    """
    is_batch = "submissions" in model.model_fields
    bounds = MANY_SUBMISSIONS if is_batch else ONE_SUBMISSION
    if len(content) > _LARGE_BODY_BYTES:
        num_values = await asyncio.to_thread(refuse_costly_json, content, bounds)
    else:
        num_values = refuse_costly_json(content, bounds)
    try:
        if is_batch and num_values + len(content) // _BYTES_OF_A_VALUE > _VALUES_AT_ONCE:
            return await validated_by_items(model, content)
        return model.model_validate_json(content)
    except ValidationError as error:
        raise wrong_fields_error(error) from error


async def cancel_on_disconnect(request: Request, work: Coroutine[Any, Any, Result]) -> Result:
    """Await `work`, cancelling it when the client closes its connection.

    Raises:
        RejectedError: the client disconnected (499, which nobody reads).
    """
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(disconnected(request.receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise RejectedError("connection: closed by the client", status_code=499)
    finally:
        watch.cancel()
        task.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def disconnected(receive: Receive) -> None:
    """Return when the client closes its connection; the body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
