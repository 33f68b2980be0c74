"""When the world fails so often that a run had better end: it would only use up prompts."""

from collections import Counter, deque

from agentrl.config.schema import RolloutSection
from agentrl.errors import DataError, RolloutError
from agentrl.observability.failure_report import describe_failures
from agentrl.types import FailureClass, Termination, TrajectorySummary

_MIN_WINDOW = 64
_MIN_TRAJECTORIES = 8
"""Fewer say nothing about the world."""

_OF_REWARD = (FailureClass.REWARD, FailureClass.REWARD_DATA)
_WAY_OUT = (
    "Mend that; the same command then goes on from the last checkpoint, if there is one, after an edit of code with "
    "`run.accept_code_changes=true`"
)


_MIN_UNSCORED = 4
"""Prompts of which a reward has to fail before it is called broken, where a batch has that many."""


class FailureBudget:
    """Watches the last trajectories, as many as a step has; and until the reward has scored one, whether it ever does.

    Fresh episodes have been tried by then: what counts here is lost. One prompt may break the world by itself, so the prompt
    that failed most often is not counted. Data errors neither spend the budget nor fill it.
    """

    def __init__(self, rollout: RolloutSection) -> None:
        """Start with nothing spent."""
        self._max_share = rollout.max_infra_error_share
        size = max(_MIN_WINDOW, rollout.prompts_per_step * rollout.samples_per_prompt)
        self._recent: deque[TrajectorySummary] = deque(maxlen=size)
        self._has_scored = False
        self._unscored: list[TrajectorySummary] = []
        """Lost to the reward, while it has scored none."""
        self._batch_size = min(_MIN_WINDOW, rollout.prompts_per_step * rollout.samples_per_prompt)
        self._num_prompts = min(_MIN_UNSCORED, rollout.prompts_per_step)

    def add(self, summary: TrajectorySummary) -> None:
        """Take note of a finished trajectory.

        Raises:
            RolloutError: too many were lost to the infrastructure; the message has a count and an example of each class.
            DataError: the reward has scored none so far, of as many as a batch has; or not one could be scored of a whole
                window.
        """
        self._recent.append(summary)
        self._watch_reward(summary)
        if summary.termination is Termination.INFRA_ERROR:
            self._check_infrastructure()
        elif summary.termination is Termination.DATA_ERROR:
            self._check_scored()

    def end_batch(self) -> None:
        """Note that a batch is over, however small.

        Raises:
            DataError: the reward was asked, and has scored none so far.
        """
        num_prompts = len({summary.prompt_id for summary in self._unscored})
        if num_prompts >= min(2, self._num_prompts):  # a single prompt may be a bad row
            raise DataError(
                f"reward: it has scored none of the first {len(self._unscored)} trajectories that it was asked about, of "
                f"{num_prompts} prompts. {'; '.join(describe_failures(self._unscored))}. {_WAY_OUT}"
            )

    def _watch_reward(self, summary: TrajectorySummary) -> None:
        """Note whether the reward works; what is cut short may have its 0 without being asked about."""
        if summary.reward is not None and summary.termination is Termination.ANSWERED:
            self._has_scored = True
            self._unscored.clear()
        elif not self._has_scored and summary.reward is None and summary.failures[-1].failure_class in _OF_REWARD:
            self._unscored.append(summary)
            num_prompts = len({lost.prompt_id for lost in self._unscored})
            if len(self._unscored) >= self._batch_size and num_prompts >= self._num_prompts:
                self.end_batch()

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
