"""Lines of `run.log` with the first scored answers of a run, and a warning if the first batch has none."""

import logging

from agentrl.observability.logs import ONLY_IN_FILE
from agentrl.rewards.math_answer import AnswerStats

logger = logging.getLogger(__name__)

_NUM_EXAMPLES = 3


class AnswerLog:
    """Logs the first examples of the answer check, and warns once if the first batch contains no answer."""

    def __init__(self) -> None:
        self._num_shown = 0
        self._is_first_batch = True

    def note(self, stats: AnswerStats) -> None:
        """Add the counts of a batch, summed over all workers."""
        examples = stats.examples[: _NUM_EXAMPLES - self._num_shown]
        self._num_shown += len(examples)
        for example in examples:
            logger.info("reward: %s", example, extra=ONLY_IN_FILE)
        if stats.num_scored and self._is_first_batch:
            self._is_first_batch = False
            if stats.num_missing == stats.num_scored:
                logger.warning(
                    "reward: no answer found in the first %d finished trajectories, all score 0; set "
                    "`reward.answer_format` to the format that the policy writes, or ask for one in `data.system_prompt`",
                    stats.num_scored,
                )
