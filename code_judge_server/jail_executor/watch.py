"""One clock for all running jobs; most jobs end before their first sample."""

import asyncio
import time

from code_judge_server.jail_executor.running_job import RunningJob

_TICK_S = 0.02


class Watch:
    """Calls `look` on all its jobs, each when it is due, within a tick.

    Timers for each job would have to be set and cancelled for many jobs that last milliseconds.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.num_asleep = 0
        """Number of its jobs that are asleep."""
        self._loop = loop
        self._watched: set[RunningJob] = set()
        self._tick: asyncio.Handle | None = None

    def add(self, watched: RunningJob) -> None:
        """Watch a job until it is removed."""
        self._watched.add(watched)
        if self._tick is None:
            self._tick = self._loop.call_later(_TICK_S, self._look_around)

    def remove(self, watched: RunningJob) -> None:
        """Stop watching a job."""
        if watched in self._watched:
            self._watched.remove(watched)
            self.num_asleep -= watched.is_asleep

    def close(self) -> None:
        """Stop the clock."""
        self._watched.clear()
        if self._tick is not None:
            self._tick.cancel()

    def _look_around(self) -> None:
        # First, so that no error below stops the clock: no other job would reach its time limit then.
        self._tick = self._loop.call_later(_TICK_S, self._look_around) if self._watched else None
        now = time.monotonic()
        for watched in [watched for watched in self._watched if watched.look_at <= now]:
            watched.look(now)
        self.num_asleep = sum(watched.is_asleep for watched in self._watched)
