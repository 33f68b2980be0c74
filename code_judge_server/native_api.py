"""The native endpoints: `/v1/submissions/batch` and `/v1/health`."""

from fastapi import APIRouter, Request

from code_judge_server import __version__
from code_judge_server.http_errors import RejectedError
from code_judge_server.http_guards import StrictJsonRoute, unless_disconnected
from code_judge_server.queue import SubmissionQueue
from code_judge_server.sandbox import Executor
from code_judge_server.schemas import FieldError, Health, Language, Limits, Submission, SubmissionBatch, VerdictBatch
from code_judge_server.settings import Settings


def native_router(
    settings: Settings, queue: SubmissionQueue, executor: Executor, languages: list[Language]
) -> APIRouter:
    """Return the routes; their formats are documented in `schemas`."""
    router = APIRouter(prefix="/v1", route_class=StrictJsonRoute)

    @router.post("/submissions/batch")
    async def judge_batch(batch: SubmissionBatch, request: Request) -> VerdictBatch:
        """Judge many submissions: the verdicts have their order."""
        _refuse_large_batch(len(batch.submissions), settings.max_batch_items)
        _refuse_wrong_submissions(batch.submissions, settings.max_limits, languages)
        queue.refuse_if_full(len(batch.submissions))
        work = queue.judge_all(batch.submissions, deadline_s=batch.deadline_s)
        return VerdictBatch(verdicts=await unless_disconnected(request, work))

    @router.get("/health")
    async def health() -> Health:
        """Tell what this server is, and how busy."""
        return Health(
            version=__version__,
            isolation=executor.tier,
            memory_enforcement=executor.memory_enforcement,
            num_slots=queue.num_slots,
            num_running=queue.num_running,
            queue_length=queue.num_waiting,
            queue_capacity=queue.capacity,
            languages=languages,
            max_batch_items=settings.max_batch_items,
            max_limits=settings.max_limits,
        )

    return router


def _refuse_large_batch(num_items: int, max_items: int) -> None:
    if num_items > max_items:
        raise RejectedError(
            f"`submissions`: {num_items} items, at most {max_items} (max_batch_items) in one request", status_code=413
        )


def _refuse_wrong_submissions(submissions: list[Submission], maximum: Limits, languages: list[Language]) -> None:
    errors: list[FieldError] = []
    seen: set[str] = set()
    for index, submission in enumerate(submissions):
        where = f"submissions.{index}"
        if submission.id in seen:
            errors.append(FieldError(field=f"{where}.id", message=f"`{submission.id}` is the id of an earlier one"))
        seen.add(submission.id)
        if submission.language not in languages:
            message = f"`{submission.language}` is not installed on this server"
            errors.append(FieldError(field=f"{where}.language", message=message))
        for name, allowed in maximum.model_dump().items():
            asked = getattr(submission.limits, name)
            if asked is not None and asked > allowed:
                message = f"{asked} is more than this server allows, {allowed}"
                errors.append(FieldError(field=f"{where}.limits.{name}", message=message))
    if errors:
        summary = "; ".join(f"`{item.field}`: {item.message}" for item in errors[:3])
        raise RejectedError(f"wrong fields: {summary}", errors=errors)
