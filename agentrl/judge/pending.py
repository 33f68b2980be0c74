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
    """One call of `JudgeClient.run`; done when its verdict is set, is an error, or nobody waits for it any more."""

    submission: Submission
    verdict: asyncio.Future[Verdict]
    deadline: Deadline
    queued_at: float = field(default_factory=time.monotonic)
    sent_at: float = math.nan
    last_failure: str = "it is still busy"
    failed_on: str | None = None
    """Address of a judge that answered `internal_error`."""


def waiting(batch: Iterable[Pending]) -> list[Pending]:
    """Return those that are not done."""
    return [pending for pending in batch if not pending.verdict.done()]


def fail(batch: Iterable[Pending], error: BaseException) -> None:
    """Give `error` to those that are not done."""
    for pending in waiting(batch):
        pending.verdict.set_exception(error)
