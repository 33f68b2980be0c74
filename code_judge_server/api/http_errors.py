"""Refusals as HTTP replies; the body of each is a `Rejection`."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from code_judge_server.queueing.queue import DrainingError, QueueFullError
from code_judge_server.queueing.scheduler import JudgeFailedError
from code_judge_server.schemas import FieldError, Rejection

logger = logging.getLogger(__name__)

_MAX_ERRORS_SHOWN = 20
_MAX_ERRORS_LISTED = 2**14
_MAX_DETAIL_CHARS = 2000

DOCUMENTED_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": Rejection, "description": "Wrong fields, by name"},
    401: {"model": Rejection, "description": "The bearer token is missing or wrong"},
    408: {"model": Rejection, "description": "The body did not arrive in time"},
    413: {"model": Rejection, "description": "Too many submissions, or too large a body"},
    415: {"model": Rejection, "description": "The body is not `application/json`"},
    429: {"model": Rejection, "description": "The queue is full; the header `Retry-After` says for how many seconds"},
    500: {"model": Rejection, "description": "A bug of the judge"},
    503: {"model": Rejection, "description": "The server is stopping; the header `Retry-After` says when to retry"},
}
"""Replies besides 200 of an endpoint that takes submissions, for the OpenAPI page."""


class RejectedError(HTTPException):
    """The request is refused: status code, reason, and the wrong fields if any."""

    def __init__(self, message: str, *, status_code: int = 400, errors: list[FieldError] | None = None) -> None:
        super().__init__(status_code, message)
        self.errors = errors or []


def rejection(error: RejectedError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the reply for a refusal."""
    body = Rejection(detail=error.detail[:_MAX_DETAIL_CHARS], errors=error.errors[:_MAX_ERRORS_SHOWN])
    return JSONResponse(body.model_dump(), status_code=error.status_code, headers=headers)


def wrong_fields_error(error: ValidationError, *, inside: tuple[int | str, ...] = ()) -> RejectedError:
    """Return the refusal of a body with wrong fields, in bounded time; `inside` is the path of the validated part."""
    if error.error_count() > _MAX_ERRORS_LISTED:  # to list them takes seconds
        return RejectedError(f"wrong fields: {error.error_count()}, too many to name. See /openapi.json")
    wrong = error.errors(include_url=False, include_context=False, include_input=False)
    return _wrong_fields([{**item, "loc": (*inside, *item["loc"])} for item in wrong])


def _wrong_fields(wrong: Sequence[Any]) -> RejectedError:
    errors = [FieldError(field=_path(item["loc"]), message=item["msg"]) for item in wrong[:_MAX_ERRORS_SHOWN]]
    summary = "; ".join(f"`{item.field}`: {item.message}" for item in errors[:3])
    is_too_large = any(item["type"] == "too_long" and item["loc"][-1:] == ("submissions",) for item in wrong)
    return RejectedError(f"wrong fields: {summary}", status_code=413 if is_too_large else 400, errors=errors)


def install_error_handlers(app: FastAPI) -> None:
    """Map the exceptions of the endpoints to replies."""

    @app.exception_handler(RequestValidationError)
    async def wrong_fields(_: Request, error: RequestValidationError) -> JSONResponse:
        return rejection(_wrong_fields(error.errors()))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        headers = error.headers
        if not isinstance(error, RejectedError):
            error = RejectedError(error.detail, status_code=error.status_code)
        return rejection(error, headers=headers)

    @app.exception_handler(QueueFullError)
    async def queue_full(_: Request, error: QueueFullError) -> JSONResponse:
        return rejection(RejectedError(str(error), status_code=429), headers={"Retry-After": str(error.retry_after_s)})

    @app.exception_handler(DrainingError)
    async def draining(_: Request, error: DrainingError) -> JSONResponse:
        headers = {"Retry-After": str(error.retry_after_s), "Connection": "close"}
        return rejection(RejectedError(str(error), status_code=503), headers=headers)

    @app.exception_handler(JudgeFailedError)
    async def judge_failed(_: Request, error: JudgeFailedError) -> JSONResponse:
        return rejection(RejectedError(str(error), status_code=500))

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> JSONResponse:  # Starlette raises it again, and uvicorn logs it
        return rejection(RejectedError(f"a bug of the judge: {type(error).__name__}", status_code=500))

    @app.exception_handler(ClientDisconnect)
    async def gone(_request: Request, _error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # nobody reads it


def _path(location: tuple[int | str, ...]) -> str:
    """Return `submissions.3.code` for ("body", "submissions", 3, "code")."""
    return ".".join(str(part) for part in location if part != "body")[:256] or "body"
