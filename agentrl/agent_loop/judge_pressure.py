"""How many trajectories may run at once so that their calls do not pile up in front of the judge.

Where the judge is the bottleneck more trajectories make nothing faster: they hold KV memory while their programs wait, until
these are over their time. What each finished trajectory waited says whether there are too many, and the number follows as TCP's
window does (doi:10.1145/52325.52356): less at once by a share, more by one at a time. Nobody is asked; nothing is stopped.

The calls of tools and those of the reward count alike. A trajectory that made none says nothing by itself. But where none makes
any, as the policy calls no tools any more, no short wait would ever come: as many of them in a row as may run at once say that
the judge is free.
"""

import math

from agentrl.types import FailureClass, TrajectorySummary

_MOST_AT_ONCE = 0.5
"""Share of the trajectories by which their number falls at once, at most."""


class JudgePressure:
    """Follows the waits; `limit` is how many trajectories may run, on all engines together."""

    def __init__(self, max_queue_s: float, *, least: int) -> None:
        """Start without a limit.

        Args:
            max_queue_s: wait per call that is too long, and half of which is short; 0: none is too long.
            least: trajectories that may run in any case.
        """
        self._max_queue_s = max_queue_s or math.inf
        self._least = least
        self._heeded_from = 0
        self._num_without_call = 0
        """Trajectories in a row."""
        self.limit = math.inf

    def learn(self, summary: TrajectorySummary, *, number: int, num_running: int, num_started: int) -> None:
        """Take note of a finished trajectory.

        Args:
            summary: what it waited, and whether the judge failed it.
            number: how many had been started before it.
            num_running: trajectories that run now, this one included.
            num_started: trajectories started so far.
        """
        waited_s = _wait_per_call_s(summary)
        if waited_s is None:
            self._num_without_call += 1
            if self._num_without_call > self.limit:
                self.limit += 1
            return
        self._num_without_call = 0
        if waited_s > self._max_queue_s:
            if number >= self._heeded_from:  # the wait of an earlier one says nothing about the present limit
                kept = max(1 - _MOST_AT_ONCE, self._max_queue_s / waited_s)
                self.limit = max(self._least, math.floor(min(self.limit, num_running) * kept))
                self._heeded_from = num_started
        elif waited_s <= self._max_queue_s / 2:
            self.limit += 1


def _wait_per_call_s(summary: TrajectorySummary) -> float | None:
    """Return the mean wait of its calls, infinite where the judge had no answer; None if it made none."""
    if any(failure.failure_class is FailureClass.JUDGE for failure in summary.failures):
        return math.inf
    times = summary.times
    num_waits = min(summary.num_turns, summary.num_tool_calls) + (times.reward_queue_s > 0)
    return (times.judge_queue_s + times.reward_queue_s) / num_waits if num_waits else None
