"""One timer for all running jobs: most end before anybody has to look at them."""

import asyncio
import time
from typing import Protocol

_CLOCK_STEP_S = 0.001
"""Event loops may round to this, and call a little early."""


class Watched(Protocol):
    """Something that wants to be looked at from time to time."""

    look_at: float
    """When next, by `time.monotonic`; event loops count from the same start, though some only in milliseconds."""

    @property
    def is_asleep(self) -> bool:
        """Whether it has used hardly any CPU for a while; only `look` changes that."""
        ...

    def look(self, now: float) -> None:
        """Do what is due, and set `look_at` anew, later than `now`."""
        ...


class Watch:
    """Calls `look` on everything that it watches, each when it is due.

    A timer per job would have to be made and cancelled for each of many jobs that last milliseconds; this one is left alone
    when a job ends, and finds nothing to do.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.num_asleep = 0
        """How many of what it watches are asleep."""
        self._loop = loop
        self._watched: set[Watched] = set()
        self._timer: asyncio.Handle | None = None
        self._fires_at = 0.0

    def add(self, watched: Watched) -> None:
        """Look at it when it is due, until it is removed."""
        self._watched.add(watched)
        self._arm(watched.look_at)

    def remove(self, watched: Watched) -> None:
        """Look at it no more."""
        if watched in self._watched:
            self._watched.remove(watched)
            self.num_asleep -= watched.is_asleep

    def close(self) -> None:
        """Stop the timer."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, when: float) -> None:
        if self._timer is not None:
            if self._fires_at <= when:
                return
            self._timer.cancel()
        self._fires_at = when
        self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = time.monotonic()
        for watched in [watched for watched in self._watched if watched.look_at <= now + _CLOCK_STEP_S]:
            watched.look(now)
        self.num_asleep = sum(watched.is_asleep for watched in self._watched)
        if self._watched:
            self._arm(min(watched.look_at for watched in self._watched))
