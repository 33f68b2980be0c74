"""Limits on lost trajectories, beyond which a run ends instead of using up prompts."""

from collections import Counter, deque

from agentrl.config.schema.run import RolloutSection
from agentrl.errors import DataError, RolloutError
from agentrl.observability.reports.failure import describe_failures
from agentrl.types import FailureClass, Termination, TrajectorySummary

_MIN_WINDOW = 64
_MIN_TRAJECTORIES = 8
"""Fewer are too small a sample."""

_WAY_OUT = (
    "Fix the cause and run the same command again: it continues from the last checkpoint, if any; after an edit of code add "
    "`run.accept_code_changes=true`"
)


class FailureBudget:
    """Counts lost trajectories among the last ones (at least a step's number), and waits for a first score.

    Only trajectories that failed in every retry count. The prompt that failed most often is not counted, because one prompt
    can break the infrastructure by itself. Data errors are left out of both the lost ones and the total.
    """

    def __init__(self, rollout: RolloutSection) -> None:
        self._max_share = rollout.max_infra_error_share
        size = max(_MIN_WINDOW, rollout.prompts_per_step * rollout.samples_per_prompt)
        self._recent: deque[TrajectorySummary] = deque(maxlen=size)
        self._min_prompts = min(2, rollout.prompts_per_step)
        """Prompts without a score that end the run: a single one may be a bad row."""
        self._has_scored = False
        self._unscored: list[TrajectorySummary] = []
        """Trajectories lost to tools' data or the reward, until one has been scored."""

    def add(self, summary: TrajectorySummary) -> None:
        """Count a finished trajectory.

        Raises:
            RolloutError: too many were lost to the infrastructure; the message has a count and an example of each class.
        """
        self._recent.append(summary)
        # Trajectories that were cut short may get 0 without a call of the reward.
        if summary.reward is not None and summary.termination is Termination.ANSWERED:
            self._has_scored = True
            self._unscored.clear()
        elif not self._has_scored and summary.reward is None:
            last = summary.failures[-1].failure_class
            if last.is_data or last is FailureClass.REWARD:
                self._unscored.append(summary)
        if summary.termination is Termination.INFRA_ERROR:
            self._check_infrastructure()

    def end_batch(self) -> None:
        """Check at the end of a batch that something could be scored.

        Raises:
            DataError: no trajectory of the run has been scored so far.
        """
        num_prompts = len({summary.prompt_id for summary in self._unscored})
        if num_prompts >= self._min_prompts:
            raise DataError(
                f"rollout: none of the first {len(self._unscored)} trajectories, of {num_prompts} prompts, could be scored. "
                f"{'; '.join(describe_failures(self._unscored))}. {_WAY_OUT}"
            )

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
