"""One submission between its receipt and its verdict."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Protocol

from code_judge_server.sandbox import Spent
from code_judge_server.schemas import Submission, Verdict

Work = Callable[[float, Spent], Coroutine[Any, Any, Verdict]]
"""What a turn is used for; takes the seconds that it waited for it, and what tells of its use of the CPU meanwhile."""


class Waiter(Protocol):
    """Whoever wants the verdict of a run."""

    def give(self, run: "QueuedRun", verdict: Verdict) -> None:
        """Take the verdict."""
        ...

    def fail(self, error: BaseException) -> None:
        """Take the error that the judge raised instead of a verdict: a bug."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class QueuedRun:
    """A submission that waits or runs, for all who wait for its verdict (several, if it was sent again meanwhile)."""

    submission: Submission
    client: str
    entered_at: float
    """On the clock of `time.monotonic`."""
    work: Work | None = None
    """What to do instead of judging it."""
    key: bytes | None = None
    """Of its client, id and content, where the same submission sent again is to share this run."""
    waiters: list[Waiter] = field(default_factory=list)
    task: asyncio.Task[Verdict] | None = None
    """Absent while it waits."""
    started_at: float = 0.0
    turn_began_at: float = 0.0
    """Since when it has its slot; later than `started_at` where it gave way to others in between."""
    slot_time_s: float = 0.0
    """Of the turns that have ended."""
    next_turn: asyncio.Future[None] | None = None
    """While it gives way: done when it has a slot again."""
    spent: Spent = field(default_factory=Spent)
    """What its programs use while they run."""
    charged_s: float = 0.0
    """Slot time that its client was charged with when it started."""

    def slot_time_until_s(self, now: float) -> float:
        """Return for how long it has had a slot, the turn that it has at `now` (of `time.monotonic`) included."""
        has_slot = self.task is not None and self.next_turn is None
        return self.slot_time_s + (now - self.turn_began_at if has_slot else 0.0)

    @property
    def kind(self) -> str:
        """What its run time is likely to depend on."""
        return self.submission.language

    @property
    def num_units(self) -> int:
        """Runs of the program that make it up."""
        return len(self.submission.tests) or 1
