"""Divides the wall time of an episode into parts, without a gap."""

from collections import defaultdict

from agentrl import clock
from agentrl.types import TimeSplit


class TimeLaps:
    """Each lap begins where the last one ended, so that the parts add up to all the time since the start."""

    def __init__(self) -> None:
        """Start the first lap."""
        self._began_at = clock.now()
        self._spent_s: defaultdict[str, float] = defaultdict(float)

    @property
    def split(self) -> TimeSplit:
        """The laps that have ended."""
        return TimeSplit(**self._spent_s)

    def end(self, part: str, *, queue_s: float = 0.0, queue: str = "") -> None:
        """End a lap.

        Args:
            part: field of `TimeSplit` that takes the lap.
            queue_s: part of the lap spent in a queue, as reported by the service that answered.
            queue: field of `TimeSplit` that takes `queue_s`.
        """
        now = clock.now()
        lap_s, self._began_at = now - self._began_at, now
        waited_s = min(max(0.0, queue_s), lap_s)
        self._spent_s[part] += lap_s - waited_s
        if waited_s:
            self._spent_s[queue] += waited_s
