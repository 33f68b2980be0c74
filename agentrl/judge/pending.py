"""A submission and the caller that waits for its verdict."""

import asyncio
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentrl.types import Deadline
from code_judge_server.schemas import Submission, Verdict


@dataclass(slots=True, kw_only=True, eq=False)
class Pending:
    """One call of `JudgeClient.run`; done when `verdict` is set, an error, or cancelled."""

    submission: Submission
    verdict: asyncio.Future[Verdict]
    deadline: Deadline
    queued_at: float = field(default_factory=time.monotonic)
    sent_at: float = math.nan
    last_failure: str = "it is still busy"
    failed_on: str | None = None
    """Address of a judge that answered `internal_error`."""


def waiting(batch: Iterable[Pending]) -> list[Pending]:
    """Return the calls that are not done."""
    return [pending for pending in batch if not pending.verdict.done()]


def fail(batch: Iterable[Pending], error: BaseException) -> None:
    """Set `error` on the calls that are not done."""
    for pending in waiting(batch):
        pending.verdict.set_exception(error)
