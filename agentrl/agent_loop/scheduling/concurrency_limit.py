"""Limit on running trajectories, so that their calls do not pile up in the judge's queue.

If the judge is the bottleneck, more trajectories do not help: they hold KV memory while their programs wait, until these time
out. The limit follows the waits of finished trajectories as TCP's window does (doi:10.1145/52325.52356): it falls by a share
after a long wait and rises by one after a short wait. The judge itself is not polled, and no trajectory is stopped.

Calls of tools and of the reward count alike. A single trajectory without calls does not change the limit. After as many of
them in a row as may run at once, the limit rises: the policy may have stopped calling tools, so no short wait would ever come.
"""

import math

from agentrl.types import FailureClass, TrajectorySummary

MAX_QUEUE_S = 10.0
"""Wait per call in the judge's queue above which the limit falls; it rises below half of it. Tool calls time out after 30 s."""
_MOST_AT_ONCE = 0.5
"""Largest share by which the limit falls in one step."""


class JudgePressure:
    """Adapts `limit`, the number of trajectories that may run on all engines together, to the judge's waits."""

    def __init__(self, *, least: int) -> None:
        """Start without a limit, which never falls below `least`."""
        self._least = least
        self._heeded_from = 0
        self._num_without_call = 0
        """Successive trajectories without a call to the judge."""
        self.limit = math.inf

    def learn(self, summary: TrajectorySummary, *, number: int, num_running: int, num_started: int) -> None:
        """Adapt the limit to a finished trajectory.

        Args:
            summary: its waits and failures.
            number: trajectories started before it.
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
        if waited_s > MAX_QUEUE_S:
            if number >= self._heeded_from:  # the wait of an earlier one says nothing about the present limit
                kept = max(1 - _MOST_AT_ONCE, MAX_QUEUE_S / waited_s)
                self.limit = max(self._least, math.floor(min(self.limit, num_running) * kept))
                self._heeded_from = num_started
        elif waited_s <= MAX_QUEUE_S / 2:
            self.limit += 1


def _wait_per_call_s(summary: TrajectorySummary) -> float | None:
    """Return the mean wait per call; infinite if the judge did not answer, None without calls."""
    if any(failure.failure_class is FailureClass.JUDGE for failure in summary.failures):
        return math.inf
    times = summary.times
    num_waits = min(summary.num_turns, summary.num_tool_calls) + (times.reward_queue_s > 0)
    return (times.judge_queue_s + times.reward_queue_s) / num_waits if num_waits else None
