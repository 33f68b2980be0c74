"""Counters of a judge client, as plain data for the metrics."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace

_heard_s: ContextVar[list[float] | None] = ContextVar("judge_waits_s", default=None)


@contextlib.contextmanager
def judge_waits() -> Iterator[list[float]]:
    """Yield a list to which every answered call adds its seconds in the queue, also calls of tasks begun inside."""
    waits_s: list[float] = []
    token = _heard_s.set(waits_s)
    try:
        yield waits_s
    finally:
        _heard_s.reset(token)


def note_judge_wait(wait_s: float) -> None:
    """Add the wait of one call to the current context's list."""
    if (waits_s := _heard_s.get()) is not None:
        waits_s.append(wait_s)


@dataclass(slots=True, kw_only=True)
class JudgeStats:
    """Counters and samples since the last call; `+` adds those of several clients."""

    num_submissions: int = 0
    """Requested verdicts."""
    num_requests: int = 0
    """HTTP requests sent."""
    num_retries: int = 0
    """Submissions sent again, because the result of an earlier try is unknown."""
    num_unavailable: int = 0
    """Submissions that ended in a `JudgeUnavailableError`; cancelled callers are not counted."""
    num_dropped_hosts: int = 0
    """Times that a judge failed and was dropped until it answered again."""
    queue_wait_s: list[float] = field(default_factory=list)
    """Time from the call to the start of the program, per verdict."""
    round_trip_s: list[float] = field(default_factory=list)
    """Time from the call to the verdict, per verdict."""

    def take(self) -> "JudgeStats":
        """Return the counts, and reset them."""
        taken, fresh = replace(self), JudgeStats()
        for item in fields(self):
            setattr(self, item.name, getattr(fresh, item.name))
        return taken

    def __add__(self, other: "JudgeStats") -> "JudgeStats":
        return JudgeStats(**{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)})

    def metrics(self) -> dict[str, float]:
        """Return `judge/...` metrics; times only if there was a verdict."""
        metrics = {
            "judge/submissions": float(self.num_submissions),
            "judge/requests": float(self.num_requests),
            "judge/retries": float(self.num_retries),
            "judge/unavailable": float(self.num_unavailable),
            "judge/dropped_hosts": float(self.num_dropped_hosts),
        }
        for name, samples in (("queue_wait_s", self.queue_wait_s), ("round_trip_s", self.round_trip_s)):
            if samples:
                metrics[f"judge/{name}_mean"] = sum(samples) / len(samples)
                metrics[f"judge/{name}_p95"] = _percentile(samples, 0.95)
        return metrics


def _percentile(samples: Sequence[float], share: float) -> float:
    """Return the smallest sample that at least `share` of the samples do not exceed (nearest rank)."""
    return sorted(samples)[max(0, math.ceil(share * len(samples)) - 1)]
