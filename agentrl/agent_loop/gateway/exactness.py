"""The token-exactness report: what became of every call of an agent, and of every token that was sampled for it.

The counts of a scored episode travel with its trajectory, so a worker's death loses both or neither. Those of failed episodes
stay in the worker until they are asked for, and are lost with it.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import StrEnum

from agentrl.agent_loop.gateway.history import ForkReason


class DropReason(StrEnum):
    """Reason why a sampled token is not trained on."""

    UNREAD = "unread"
    """The agent left before the answer was whole."""
    FAILED = "failed"
    """The episode or its reward failed, or the group was complete without it."""
    MASKED = "masked"
    """`reward.score_unfinished: mask` leaves the episode out."""


@dataclass(slots=True, kw_only=True)
class ExactnessReport:
    """Counts of one episode or several; `+` adds them.

    `num_sampled == num_trained + sum(dropped.values())` once no episode runs.
    """

    num_calls: int = 0
    """Answers that were committed."""
    num_rows: int = 0
    num_sampled: int = 0
    """Tokens that engines sampled for agents, as far as they reported it."""
    num_trained: int = 0
    """Tokens of trajectories that were handed to training. The selection of groups may still drop them."""
    forks: Counter[ForkReason] = field(default_factory=Counter)
    dropped: Counter[DropReason] = field(default_factory=Counter)
    """Sampled tokens that are not trained on."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Calls with a field that the run sets itself, such as `temperature`."""

    def add_call(self, *, begins_row: bool, fork: ForkReason | None, ignored: Iterable[str]) -> None:
        """Count an answer that was committed."""
        self.num_calls += 1
        self.num_rows += begins_row
        if fork is not None:
            self.forks[fork] += 1
        for name in ignored:
            self.ignored[name] += 1

    def take(self) -> "ExactnessReport":
        """Return the counts, and reset them."""
        taken, fresh = self + ExactnessReport(), ExactnessReport()
        for item in fields(self):
            setattr(self, item.name, getattr(fresh, item.name))
        return taken

    def __add__(self, other: "ExactnessReport") -> "ExactnessReport":
        return ExactnessReport(
            **{item.name: getattr(self, item.name) + getattr(other, item.name) for item in fields(self)}
        )

    def metrics(self) -> dict[str, float]:
        """Return `agent/...` metrics; none without a call."""
        if not self.num_calls and not self.num_sampled:
            return {}
        return {
            "agent/calls": float(self.num_calls),
            "agent/rows": float(self.num_rows),
            "agent/forks": float(self.forks.total()),
            "agent/tokens_sampled": float(self.num_sampled),
            "agent/tokens_trained": float(self.num_trained),
            **{f"agent/forks_{reason}": float(count) for reason, count in sorted(self.forks.items())},
            **{f"agent/tokens_{reason}": float(count) for reason, count in sorted(self.dropped.items())},
            **{f"agent/ignored_{name}": float(count) for name, count in sorted(self.ignored.items())},
        }

    def __str__(self) -> str:
        forks = f", {self.forks.total()} forks{_listed(self.forks.items())}"
        dropped = f"{self.dropped.total()} left out{_listed(self.dropped.items())}"
        ignored = f"; ignored fields: {_listed(self.ignored.items()).strip(' ()')}" if self.ignored else ""
        return (
            f"{self.num_calls} calls in {self.num_rows} rows{forks}; {self.num_sampled} tokens sampled, "
            f"{self.num_trained} trained, {dropped}{ignored}"
        )


def _listed(counts: Iterable[tuple[str, int]]) -> str:
    words = ", ".join(f"{name} {count}" for name, count in sorted(counts) if count)
    return f" ({words})" if words else ""
