"""Measures how long something blocks an event loop: one blocked loop stalls every trajectory of its worker."""

import asyncio
import logging

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.05
_WARN_ABOVE_S = 0.25


class LoopLag:
    """Sleeps in short steps and notes by how much each came late."""

    def __init__(self, name: str) -> None:
        """Start measuring the running loop; `name` is for the warning."""
        self._name = name
        self._max_s = 0.0
        self._task = asyncio.create_task(self._measure())

    def take_max_s(self) -> float:
        """Return the longest lag since the last call, in seconds."""
        largest, self._max_s = self._max_s, 0.0
        return largest

    def stop(self) -> None:
        """End the measuring."""
        self._task.cancel()

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(_INTERVAL_S)
            lag_s = loop.time() - before - _INTERVAL_S
            self._max_s = max(self._max_s, lag_s)
            if lag_s > _WARN_ABOVE_S:
                logger.warning(
                    "%s: its event loop was blocked for %.2f s; a tool or reward must not compute on it",
                    self._name,
                    lag_s,
                )
