"""The endpoints of code-judge: `/ping`, `/status`, and `/run` and `/judge` with `/batch` and `/long-batch`.

They never answer 429, because clients of that format give up after a few quick retries: `long-batch` waits in the queue, the
other endpoints answer `queue_timeout` for submissions that did not start in time.
"""

import uuid
from collections.abc import Collection

from fastapi import APIRouter, Request

from code_judge_server.api.http_errors import DOCUMENTED_REFUSALS
from code_judge_server.api.http_guards import StrictJsonRoute, cancel_on_disconnect, client_of
from code_judge_server.api.limits.sent_replies import until_sent
from code_judge_server.api.native_api import bounded_batch
from code_judge_server.compatible.code_judge_schemas import (
    CodeJudgeBatch,
    CodeJudgeJudgement,
    CodeJudgeJudgementBatch,
    CodeJudgeReason,
    CodeJudgeResult,
    CodeJudgeResultBatch,
    CodeJudgeStatus,
    CodeJudgeSubmission,
)
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.schemas import Checker, CheckerKind, Submission, Verdict, VerdictStatus
from code_judge_server.settings import Settings

_REASONS = {
    VerdictStatus.TIME_LIMIT_EXCEEDED: CodeJudgeReason.WORKER_TIMEOUT,
    VerdictStatus.QUEUE_TIMEOUT: CodeJudgeReason.QUEUE_TIMEOUT,
    VerdictStatus.INTERNAL_ERROR: CodeJudgeReason.INTERNAL_ERROR,
    VerdictStatus.CANCELLED: CodeJudgeReason.INTERNAL_ERROR,
}
_AT_TIME_LIMIT = "Suicide from timeout.\n"
_CHECKER = Checker(kind=CheckerKind.STRIPPED)
_REFUSALS = {status: answer for status, answer in DOCUMENTED_REFUSALS.items() if status != 429}
_DID_NOT_RUN = {VerdictStatus.QUEUE_TIMEOUT, VerdictStatus.INTERNAL_ERROR, VerdictStatus.CANCELLED}


def code_judge_router(settings: Settings, queue: SubmissionQueue, languages: Collection[str]) -> APIRouter:
    """Return the routes; their formats are documented in `code_judge_schemas`."""
    router = APIRouter(route_class=StrictJsonRoute, responses=_REFUSALS)
    batch_model = bounded_batch(CodeJudgeBatch, settings.max_batch_items)

    async def results_of(
        submissions: list[CodeJudgeSubmission], request: Request, *, patient: bool = False
    ) -> list[CodeJudgeResult]:
        """Return one result per submission, in order; `patient` submissions never time out in the queue."""
        judged = {index: item for index, item in enumerate(submissions) if item.type in languages}
        work = queue.judge_all(
            [_as_submission(item) for item in judged.values()],
            client=client_of(request.scope),
            max_queue_time_s=None if patient else settings.max_queue_time_s,
            room=until_sent(request),
        )
        verdicts = dict(zip(judged, await cancel_on_disconnect(request, work), strict=True))
        return [_as_result(item, verdicts.get(index)) for index, item in enumerate(submissions)]

    @router.get("/ping")
    async def ping() -> str:
        return "pong"

    @router.get("/status")
    async def status() -> CodeJudgeStatus:
        return CodeJudgeStatus(queue=queue.num_waiting, num_workers=queue.num_slots)

    @router.post("/run")
    @router.post("/judge", response_model=CodeJudgeJudgement)
    async def run(submission: CodeJudgeSubmission, request: Request) -> CodeJudgeResult:
        return (await results_of([submission], request))[0]

    def add_batches(path: str, *, patient: bool) -> None:
        async def results(batch: batch_model, request: Request) -> CodeJudgeResultBatch:  # pyright: ignore[reportInvalidTypeForm] (made above)
            results = await results_of(batch.submissions, request, patient=patient)
            return CodeJudgeResultBatch(sub_id=batch.sub_id or _new_id(), results=results)

        router.post(f"/run/{path}")(results)
        router.post(f"/judge/{path}", response_model=CodeJudgeJudgementBatch)(results)

    add_batches("batch", patient=False)
    add_batches("long-batch", patient=True)
    return router


def _new_id() -> str:
    return str(uuid.uuid4())


def _as_submission(item: CodeJudgeSubmission) -> Submission:
    return Submission(
        id=_new_id(),  # ids of clients may be empty, long, or not unique
        language=item.type,
        code=item.solution,
        stdin=item.input or "",
        expected_output=item.expected_output,
        checker=_CHECKER,
    )


def _stdout(verdict: Verdict) -> str:
    """Return the program's stdout, with the line that code-judge's own guard prints at its time limit."""
    return verdict.stdout + (_AT_TIME_LIMIT if verdict.status is VerdictStatus.TIME_LIMIT_EXCEEDED else "")


def _as_result(item: CodeJudgeSubmission, verdict: Verdict | None) -> CodeJudgeResult:
    """Return the verdict in code-judge's format; None is a type that is not judged here."""
    sub_id = item.sub_id or _new_id()
    if verdict is None:
        return CodeJudgeResult(
            sub_id=sub_id, success=False, run_success=False, cost=0.0, reason=CodeJudgeReason.INVALID_INPUT
        )
    ran = verdict.status not in _DID_NOT_RUN
    return CodeJudgeResult(
        sub_id=sub_id,
        success=verdict.status is VerdictStatus.ACCEPTED,
        run_success=verdict.status in (VerdictStatus.ACCEPTED, VerdictStatus.WRONG_ANSWER),
        cost=verdict.wall_time_s if ran else verdict.queue_time_s,
        stdout=_stdout(verdict) if ran else None,
        stderr=verdict.stderr if ran else None,
        reason=_REASONS.get(verdict.status, CodeJudgeReason.NONE),
    )
