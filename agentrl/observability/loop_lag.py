"""The lag of an event loop, and the pauses of the garbage collector in it: a blocked loop stalls all that runs on it."""

import asyncio
import gc
import logging
import math
from collections import deque
from dataclasses import dataclass

from agentrl import clock
from agentrl.observability.logs import repeating

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.05
_WARN_ABOVE_S = 0.25
_MAX_SAMPLES = 100_000
_OBJECTS_PER_COLLECTION = 50_000
"""Python's 700 are a tenth of a second of pauses for each thousand calls of agents, whose records are no garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of an event loop."""

    p99_s: float
    max_s: float


class LoopLag:
    """A timer on the running loop that measures its own delay, until `stop` or the end of the loop."""

    def __init__(self, name: str) -> None:
        """Start; `name` is for the warning."""
        self._name = name
        self._samples: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._task = asyncio.create_task(self._beat())

    def take(self) -> Lag:
        """Return the lag since the last call."""
        samples = sorted(self._samples)
        self._samples.clear()
        if not samples:
            return Lag(p99_s=0.0, max_s=0.0)
        return Lag(p99_s=samples[math.ceil(0.99 * len(samples)) - 1], max_s=samples[-1])

    def stop(self) -> None:
        """End the timer."""
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            before = clock.now()
            await asyncio.sleep(_INTERVAL_S)
            lag_s = max(0.0, clock.now() - before - _INTERVAL_S)
            self._samples.append(lag_s)
            if lag_s > _WARN_ABOVE_S:
                logger.warning(
                    "%s: event loop late by %.2f s; run blocking code in a thread (a tool's in a plain `def`)",
                    self._name,
                    lag_s,
                    extra=repeating(f"event loop of {self._name}"),
                )


def collect_rarely() -> None:
    """Keep the garbage collector from stopping the loops of this process; called once all is loaded.

    Objects of loaded libraries live as long as the process, and looking through them takes 0.2 s. References are counted
    as before: only objects that refer to each other in a circle wait longer.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS_PER_COLLECTION)
