"""Divides the wall time of an episode into parts, without a gap."""

from dataclasses import replace

from agentrl import clock
from agentrl.types import TimeSplit


class TimeLaps:
    """Each lap begins where the last one ended, so that the parts add up to all the time since the start."""

    def __init__(self) -> None:
        """Start the first lap."""
        self._began_at = clock.now()
        self.split = TimeSplit()

    def end(self, part: str, *, queue_s: float = 0.0, queue: str = "") -> None:
        """End a lap.

        Args:
            part: field of `TimeSplit` that the lap was.
            queue_s: as much of it as was spent waiting for one's turn, by the word of whoever answered.
            queue: field of `TimeSplit` that takes it.
        """
        now = clock.now()
        lap_s, self._began_at = now - self._began_at, now
        waited_s = min(max(0.0, queue_s), lap_s)
        changes = {part: getattr(self.split, part) + lap_s - waited_s}
        if waited_s:
            changes[queue] = getattr(self.split, queue) + waited_s
        self.split = replace(self.split, **changes)
