"""The native endpoints: single submissions, batches, streams, and the state of the server."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, FailFast, Field, create_model

from code_judge_server.api.http_errors import DOCUMENTED_REFUSALS, RejectedError
from code_judge_server.api.http_guards import DirectJsonRoute, client_of
from code_judge_server.api.verdict_replies import NDJSON, BatchReply, SingleReply, StreamReply
from code_judge_server.languages import LanguageRules, wrong_fields
from code_judge_server.metrics import Metrics
from code_judge_server.queueing.idempotency import content_keys
from code_judge_server.queueing.pending_batch import PendingBatch
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.schemas import (
    FieldError,
    Health,
    Submission,
    SubmissionBatch,
    SubmissionRequest,
    Verdict,
    VerdictBatch,
)
from code_judge_server.settings import Settings

_Batch = TypeVar("_Batch", bound=BaseModel)


def bounded_batch(batch: type[_Batch], max_items: int) -> type[_Batch]:
    """Return a batch model that validates at most `max_items` of its `submissions`, and stops at the first wrong one."""
    items = batch.model_fields["submissions"].annotation
    submissions: Any = Annotated[items, FailFast(), Field(min_length=1, max_length=max_items)]
    return create_model(batch.__name__, __base__=batch, submissions=(submissions, ...))


_CLIENT_HEADER: dict[str, Any] = {
    "parameters": [
        {
            "name": "Judge-Client",
            "in": "header",
            "required": False,
            "schema": {"type": "string"},
            "description": "Name of the client, for fair shares and for its ids; absent: the address it calls from.",
        }
    ]
}


_ENOUGH_ERRORS = 100
"""The reply shows no more of them."""


class _NdjsonResponse(Response):
    """Media type of a `StreamReply`, for the OpenAPI page."""

    media_type = NDJSON


def submission_router(settings: Settings, queue: SubmissionQueue, languages: Mapping[str, LanguageRules]) -> APIRouter:
    """Return the routes that take submissions; their formats are documented in `schemas`."""
    router = APIRouter(prefix="/v1", route_class=DirectJsonRoute)
    batch_model = bounded_batch(SubmissionBatch, settings.max_batch_items)
    document = {"openapi_extra": _CLIENT_HEADER, "response_model": None}

    def answers(content: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
        return {200: content, **DOCUMENTED_REFUSALS}

    async def enqueue(batch: SubmissionBatch, request: Request) -> PendingBatch:
        refuse_wrong_submissions(batch.submissions, languages, where="submissions")
        client = client_of(request.scope)
        keys = await content_keys(client, batch.submissions)
        return queue.enqueue(batch.submissions, client=client, keys=keys, deadline_s=batch.deadline_s)

    @router.post("/submissions", responses=answers({"model": Verdict}), **document)
    async def judge_one(submission: SubmissionRequest, request: Request) -> Response:
        """Judge one submission."""
        refuse_wrong_submissions([submission], languages, where="")
        client = client_of(request.scope)
        keys = await content_keys(client, [submission])
        return SingleReply(queue.enqueue([submission], client=client, keys=keys, deadline_s=submission.deadline_s))

    @router.post("/submissions/batch", responses=answers({"model": VerdictBatch}), **document)
    async def judge_batch(batch: batch_model, request: Request) -> Response:  # pyright: ignore[reportInvalidTypeForm] (made above)
        """Judge many submissions; the verdicts come in the same order."""
        return BatchReply(await enqueue(batch, request))

    stream = {"description": "One `Verdict` a line", "content": {NDJSON: {"schema": {"type": "string"}}}}

    @router.post("/submissions/stream", responses=answers(stream), response_class=_NdjsonResponse, **document)
    async def judge_stream(batch: batch_model, request: Request) -> Response:  # pyright: ignore[reportInvalidTypeForm] (made above)
        """Judge many submissions; each verdict comes on its own line as soon as it is ready."""
        return StreamReply(await enqueue(batch, request))

    return router


def state_router(queue: SubmissionQueue, health_of: Callable[[str], Health], metrics: Metrics) -> APIRouter:
    """Return the routes that report the server's state."""
    router = APIRouter()
    stopping: dict[int | str, dict[str, Any]] = {503: DOCUMENTED_REFUSALS[503]}
    refused: dict[int | str, dict[str, Any]] = {401: DOCUMENTED_REFUSALS[401]}

    @router.get("/v1/health", responses=refused)
    async def health(request: Request) -> Health:
        """Return the server's state, its load, and the expected wait of this client."""
        return health_of(client_of(request.scope))

    @router.get("/v1/ready", responses=stopping)
    async def ready() -> str:
        """Answer `ready`, or 503 while the server is stopping; needs no token."""
        queue.refuse_if_draining()
        return "ready"

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **refused},
    )
    async def prometheus() -> Response:
        """Return the metrics for Prometheus."""
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def refuse_wrong_submissions(
    submissions: Sequence[Submission], languages: Mapping[str, LanguageRules], *, where: str
) -> None:
    """Raise RejectedError for submissions that this server's languages do not support, and for duplicate ids."""
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, submission in enumerate(submissions):
        path = f"{where}.{index}." if where else ""
        if submission.id in seen:
            errors.append(FieldError(field=f"{path}id", message=f"`{submission.id}` is the id of an earlier one"))
        seen.add(submission.id)
        errors += [
            FieldError(field=f"{path}{wrong.field}", message=wrong.message)
            for wrong in wrong_fields(submission, languages)
        ]
        if len(errors) >= _ENOUGH_ERRORS:
            break
    if errors:
        summary = "; ".join(f"`{item.field}`: {item.message}" for item in errors[:3])
        raise RejectedError(f"wrong fields: {summary}", errors=errors)
