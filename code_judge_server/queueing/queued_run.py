"""One submission between its receipt and its verdict."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from code_judge_server.sandbox.executor import Spent
from code_judge_server.schemas import Submission, Verdict

Work = Callable[[float, Spent], Coroutine[Any, Any, Verdict]]
"""Work for a slot; takes the seconds that it waited, and the object that receives its CPU time meanwhile."""


class Waiter(Protocol):
    """A receiver of the verdict of a run."""

    def give(self, run: "QueuedRun", verdict: Verdict) -> None:
        """Receive the verdict."""
        ...

    def fail(self, error: BaseException) -> None:
        """Receive the error that the judge raised instead of a verdict: a bug."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedRun:
    """A waiting or running submission, with all its waiters (several, if it was sent again meanwhile)."""

    submission: Submission
    client: str
    entered_at: float
    """Time by `time.monotonic`."""
    work: Work | None = None
    """Work to do instead of judging the submission."""
    key: bytes | None = None
    """Key of its client, id and content, if repetitions may share this run."""
    waiters: list[Waiter] = field(default_factory=list)
    task: asyncio.Task[Verdict] | None = None
    """None while it waits."""
    started_at: float = 0.0
    turn_began_at: float = 0.0
    """Start of its current turn; later than `started_at` if it has yielded to others."""
    slot_time_s: float = 0.0
    """Slot time of its past turns."""
    next_turn: asyncio.Future[None] | None = None
    """Future that is done when the run, which has yielded, has a slot again."""
    spent: Spent = field(default_factory=Spent)
    """Receives the CPU time of its programs while they run."""
    charged_s: float = 0.0
    """Slot time charged to its client when it started."""

    def slot_time_until_s(self, now: float) -> float:
        """Return its slot time, including its turn at `now` (of `time.monotonic`)."""
        has_slot = self.task is not None and self.next_turn is None
        return self.slot_time_s + (now - self.turn_began_at if has_slot else 0.0)

    @property
    def kind(self) -> str:
        """Key on which its run time probably depends."""
        return self.submission.language

    @property
    def num_units(self) -> int:
        """Number of program runs it consists of."""
        return len(self.submission.tests) or 1
