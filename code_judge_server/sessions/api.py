"""The endpoints of sessions: `/v1/sessions` and below."""

from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import JSONResponse

from code_judge_server.api.http_errors import DOCUMENTED_REFUSALS, RejectedError, rejection
from code_judge_server.api.http_guards import StrictJsonRoute, cancel_on_disconnect, client_of
from code_judge_server.api.limits.sent_replies import until_sent
from code_judge_server.schemas import Rejection
from code_judge_server.sessions.manager import (
    NoSessionsError,
    NoSuchPreloadError,
    NoSuchSessionError,
    SessionManager,
    SessionNotOpenedError,
    TooManySessionsError,
)
from code_judge_server.sessions.schemas import CellRequest, CellResult, RollbackRequest, SessionRequest, SessionState
from code_judge_server.sessions.session import NoSnapshotError

_STATUS_CODES = {
    NoSessionsError: 404,
    NoSuchSessionError: 404,
    NoSnapshotError: 404,
    NoSuchPreloadError: 400,
    TooManySessionsError: 429,
    SessionNotOpenedError: 503,
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    **DOCUMENTED_REFUSALS,
    404: {
        "model": Rejection,
        "description": "The session or snapshot does not exist (any more), or this server cannot hold sessions",
    },
    429: {
        "model": Rejection,
        "description": "The queue is full, or there is no room for another session; the header `Retry-After` says for how many "
        "seconds",
    },
    503: {
        "model": Rejection,
        "description": "The server is stopping, or restarting parts that hold sessions; the header `Retry-After` "
        "says when to retry",
    },
}
_RETRY_AFTER_S = {429: 5, 503: 2}
"""A place is free whenever a session is closed; dead parts are back after a second or two."""


def session_router(sessions: SessionManager) -> APIRouter:
    """Return the routes; their formats are documented in `schemas`."""
    router = APIRouter(prefix="/v1/sessions", route_class=StrictJsonRoute, responses=_REFUSALS)

    @router.post("")
    async def open_session(body: SessionRequest, request: Request) -> SessionState:
        """Open a session."""
        state = await cancel_on_disconnect(request, sessions.open(body, client=client_of(request.scope)))
        if await request.is_disconnected():
            sessions.close(state.session_id)
            raise RejectedError("connection: closed by the client", status_code=499)
        return state

    @router.get("/{session_id}")
    async def session_state(session_id: str) -> SessionState:
        """Return a session's current snapshot, and the others that a cell can start from."""
        return sessions.state(session_id)

    @router.post("/{session_id}/cells")
    async def run_cell(session_id: str, body: CellRequest, request: Request) -> CellResult:
        """Run a cell after the ones before it."""
        work = sessions.run(session_id, body, client=client_of(request.scope), room=until_sent(request))
        return await cancel_on_disconnect(request, work)

    @router.post("/{session_id}/rollback")
    async def rollback(session_id: str, body: RollbackRequest) -> SessionState:
        """Let the next cell start from an earlier snapshot."""
        return sessions.rollback(session_id, body.snapshot)

    @router.delete("/{session_id}", status_code=204)
    async def close_session(session_id: str) -> Response:
        """Close a session, whatever it does."""
        sessions.close(session_id)
        return Response(status_code=204)

    return router


def install_session_errors(app: FastAPI) -> None:
    """Map the exceptions of the endpoints to replies."""

    async def refused(_: Request, error: Exception) -> JSONResponse:
        status_code = _STATUS_CODES[type(error)]
        headers = {"Retry-After": str(_RETRY_AFTER_S[status_code])} if status_code in _RETRY_AFTER_S else None
        return rejection(RejectedError(str(error), status_code=status_code), headers=headers)

    for kind in _STATUS_CODES:
        app.add_exception_handler(kind, refused)
