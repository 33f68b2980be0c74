"""Solved rate of each prompt, by which a later stage of a run leaves prompts out."""

from collections.abc import Iterable
from typing import Self

import orjson

from agentrl.config.schema.algorithm import SelectionSection
from agentrl.data.prompts import id_without_epoch
from agentrl.observability.reports.outcome import is_solved
from agentrl.types import TrajectorySummary


class PassRates:
    """Share of solved trajectories of each prompt in its last rollout."""

    def __init__(self, rates: dict[str, float] | None = None, left_out: Iterable[str] = ()) -> None:
        """Start with the rates of an earlier process, or empty."""
        self._rates = dict(rates or {})
        self.left_out = frozenset(left_out)
        """Ids of the prompts that the current stage leaves out."""

    def record(self, summaries: Iterable[TrajectorySummary], selection: SelectionSection) -> None:
        """Add whole groups; trajectories without a reward do not count. `selection` defines solved."""
        solved: dict[str, list[bool]] = {}
        for summary in summaries:
            if summary.reward is not None:
                solved.setdefault(id_without_epoch(summary.prompt_id), []).append(is_solved(summary, selection))
        self._rates |= {prompt_id: sum(marks) / len(marks) for prompt_id, marks in solved.items()}

    def go_back_to(self, earlier: Self) -> None:
        """Restore the rates of `earlier`; `left_out` stays."""
        self._rates = dict(earlier._rates)

    def leave_out_above(self, max_pass_rate: float | None) -> None:
        """Leave out the prompts with a higher rate; None leaves out none. Unseen prompts stay."""
        solved = (
            prompt_id for prompt_id, rate in self._rates.items() if max_pass_rate is not None and rate > max_pass_rate
        )
        self.left_out = frozenset(solved)

    def encode(self) -> bytes:
        """Return the state as JSON, for a checkpoint."""
        return orjson.dumps({"rates": self._rates, "left_out": sorted(self.left_out)})

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return the state that `encode` wrote; raises ValueError, LookupError or TypeError if it is damaged."""
        saved = orjson.loads(content)
        return cls(saved["rates"], saved["left_out"])
