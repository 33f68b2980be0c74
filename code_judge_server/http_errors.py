"""Refusals as HTTP replies: every 4xx has a `Rejection` as its body."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from code_judge_server.queue import QueueFullError
from code_judge_server.schemas import FieldError, Rejection

_MAX_ERRORS_SHOWN = 20


class RejectedError(HTTPException):
    """The request is refused: its status code, the reason, and the wrong fields if it was for them."""

    def __init__(self, message: str, *, status_code: int = 400, errors: list[FieldError] | None = None) -> None:
        super().__init__(status_code, message)
        self.errors = errors or []


def rejection(error: RejectedError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the reply that says so."""
    body = Rejection(detail=error.detail, errors=error.errors)
    return JSONResponse(body.model_dump(), status_code=error.status_code, headers=headers)


def install_error_handlers(app: FastAPI) -> None:
    """Answer what the endpoints raise."""

    @app.exception_handler(RequestValidationError)
    async def wrong_fields(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = [
            FieldError(field=_path(item["loc"]), message=item["msg"]) for item in error.errors()[:_MAX_ERRORS_SHOWN]
        ]
        summary = "; ".join(f"`{item.field}`: {item.message}" for item in errors[:3])
        return rejection(RejectedError(f"wrong fields: {summary}", errors=errors))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> JSONResponse:
        if not isinstance(error, RejectedError):
            error = RejectedError(error.detail, status_code=error.status_code)
        return rejection(error)

    @app.exception_handler(QueueFullError)
    async def queue_full(_: Request, error: QueueFullError) -> JSONResponse:
        return rejection(RejectedError(str(error), status_code=429), headers={"Retry-After": str(error.retry_after_s)})


def _path(location: tuple[int | str, ...]) -> str:
    """Return `submissions.3.code` for ("body", "submissions", 3, "code")."""
    return ".".join(str(part) for part in location if part != "body") or "body"
