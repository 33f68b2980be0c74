"""One clock for all running jobs: most end before anybody has to look at them."""

import asyncio
import time
from typing import Protocol

_TICK_S = 0.02


class Watched(Protocol):
    """Something that wants to be looked at from time to time."""

    look_at: float
    """When next, by `time.monotonic`: at the first tick after it."""

    @property
    def is_asleep(self) -> bool:
        """Whether it has used hardly any CPU for a while, and not for want of a core; only `look` changes that."""
        ...

    def look(self, now: float) -> None:
        """Do what is due, and set `look_at` anew, later than `now`."""
        ...


class Watch:
    """Calls `look` on everything that it watches, each when it is due, within a tick.

    A timer per job would have to be made and cancelled for each of many jobs that last milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.num_asleep = 0
        """How many of what it watches are asleep."""
        self._loop = loop
        self._watched: set[Watched] = set()
        self._tick: asyncio.Handle | None = None

    def add(self, watched: Watched) -> None:
        """Look at it when it is due, until it is removed."""
        self._watched.add(watched)
        if self._tick is None:
            self._tick = self._loop.call_later(_TICK_S, self._look_around)

    def remove(self, watched: Watched) -> None:
        """Look at it no more."""
        if watched in self._watched:
            self._watched.remove(watched)
            self.num_asleep -= watched.is_asleep

    def close(self) -> None:
        """Stop the clock."""
        self._watched.clear()
        if self._tick is not None:
            self._tick.cancel()

    def _look_around(self) -> None:
        # First of all, so that nothing that goes wrong below stops the clock: no other job would ever be late then.
        self._tick = self._loop.call_later(_TICK_S, self._look_around) if self._watched else None
        now = time.monotonic()
        for watched in [watched for watched in self._watched if watched.look_at <= now]:
            watched.look(now)
        self.num_asleep = sum(watched.is_asleep for watched in self._watched)
