"""When the world fails so often that a run had better end: it would only use up prompts."""

from collections import Counter, deque

from agentrl.config.schema import RolloutSection
from agentrl.errors import DataError, RolloutError
from agentrl.observability.failure_report import describe_failures
from agentrl.types import Termination, TrajectorySummary

_MIN_WINDOW = 64
_MIN_TRAJECTORIES = 8
"""Fewer say nothing about the world."""

_WAY_OUT = "Mend that; the same command then goes on from the last checkpoint, if there is one"


class FailureBudget:
    """Watches the last trajectories, as many as a step has.

    Fresh episodes have been tried by then: what counts here is lost. One prompt may break the world by itself, so the prompt
    that failed most often is not counted. Data errors neither spend the budget nor fill it.
    """

    def __init__(self, rollout: RolloutSection) -> None:
        """Start with nothing spent."""
        self._max_share = rollout.max_infra_error_share
        size = max(_MIN_WINDOW, rollout.prompts_per_step * rollout.samples_per_prompt)
        self._recent: deque[TrajectorySummary] = deque(maxlen=size)

    def add(self, summary: TrajectorySummary) -> None:
        """Take note of a finished trajectory.

        Raises:
            RolloutError: too many were lost to the infrastructure; the message has a count and an example of each class.
            DataError: not one could be scored of a whole window.
        """
        self._recent.append(summary)
        if summary.termination is Termination.INFRA_ERROR:
            self._check_infrastructure()
        elif summary.termination is Termination.DATA_ERROR:
            self._check_scored()

    def _check_infrastructure(self) -> None:
        counted = [summary for summary in self._recent if summary.termination is not Termination.DATA_ERROR]
        worst = Counter(s.prompt_id for s in counted if s.termination is Termination.INFRA_ERROR).most_common(1)[0][0]
        counted = [summary for summary in counted if summary.prompt_id != worst]
        lost = [summary for summary in counted if summary.termination is Termination.INFRA_ERROR]
        if len(counted) >= _MIN_TRAJECTORIES and len(lost) > self._max_share * len(counted):
            raise RolloutError(
                f"rollout: {len(lost)} of the last {len(counted)} trajectories were lost to the infrastructure, and "
                f"`rollout.max_infra_error_share` is {self._max_share:g}. {'; '.join(describe_failures(lost))}. {_WAY_OUT}"
            )

    def _check_scored(self) -> None:
        recent = self._recent
        if len(recent) < (recent.maxlen or 0) or any(summary.reward is not None for summary in recent):
            return
        num_prompts = len({summary.prompt_id for summary in recent})
        if num_prompts > 1:
            raise DataError(
                f"rollout: none of the last {len(recent)} trajectories, of {num_prompts} prompts, could be scored. "
                f"{'; '.join(describe_failures(recent))}. {_WAY_OUT}"
            )
