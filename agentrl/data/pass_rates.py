"""How often each prompt was solved, which tells a later stage of a run what is still worth training on."""

from collections.abc import Iterable
from typing import Self

import orjson

from agentrl.config.algorithm_schema import SelectionSection
from agentrl.data.prompts import id_without_epoch
from agentrl.observability.outcome import is_solved
from agentrl.types import TrajectorySummary


class PassRates:
    """The share of solved trajectories of each prompt, the last time that it was rolled out.

    Example: of a group of 32 with 8 rewards of 1, `pass_rates["sums-17"]` becomes 0.25, whatever it was before.
    """

    def __init__(self, rates: dict[str, float] | None = None, left_out: Iterable[str] = ()) -> None:
        """Start with what an earlier process counted, or with nothing."""
        self._rates = dict(rates or {})
        self.left_out = frozenset(left_out)
        """Ids of the prompts that the stage which is under way leaves out."""

    def record(self, summaries: Iterable[TrajectorySummary], selection: SelectionSection) -> None:
        """Take in whole groups; trajectories without a reward do not count. `selection` says what solved means."""
        solved: dict[str, list[bool]] = {}
        for summary in summaries:
            if summary.reward is not None:
                solved.setdefault(id_without_epoch(summary.prompt_id), []).append(is_solved(summary, selection))
        self._rates |= {prompt_id: sum(marks) / len(marks) for prompt_id, marks in solved.items()}

    def go_back_to(self, earlier: Self) -> None:
        """Forget what has been counted since `earlier` was saved; what is left out stays so."""
        self._rates = dict(earlier._rates)

    def leave_out_above(self, max_pass_rate: float | None) -> None:
        """Leave out the prompts that were solved more often than that; None leaves out none. Unseen prompts stay."""
        solved = (
            prompt_id for prompt_id, rate in self._rates.items() if max_pass_rate is not None and rate > max_pass_rate
        )
        self.left_out = frozenset(solved)

    def encode(self) -> bytes:
        """Return all of it as JSON, for a checkpoint."""
        return orjson.dumps({"rates": self._rates, "left_out": sorted(self.left_out)})

    @classmethod
    def decode(cls, content: bytes) -> Self:
        """Return what `encode` wrote.

        Raises:
            ValueError, LookupError, TypeError: it is something else, such as a part of that.
        """
        saved = orjson.loads(content)
        return cls(saved["rates"], saved["left_out"])
