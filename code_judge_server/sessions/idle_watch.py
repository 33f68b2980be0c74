"""Resources of a session while none of its cells runs: more than a little means that a part of a cell has survived it."""

import asyncio
import logging
from collections.abc import Callable

from code_judge_server.jail_executor.meters import Usage
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.sandbox.executor import JobLimits

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.25
_CPU_TIME_S = 0.5
"""CPU time between two cells: a dropped snapshot of some GiB takes a few tenths of a second to end."""


class IdleWatch:
    """Samples a session between its cells, to end processes that a cell has hidden from the session's own."""

    def __init__(self, slot: PrivateSlot, limits: JobLimits, *, end: Callable[[], None]) -> None:
        self._slot = slot
        self._limits = limits
        self._end = end
        self._before_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start to sample: no cell runs."""
        self.stop()
        try:
            self._slot.meter.restart()  # the counts are those of the cell before, of which nothing is left
            self._before_s = self._usage().cpu_time_s
        except OSError:
            return  # the session has just been closed
        self._look_later()

    def stop(self) -> None:
        """Stop sampling: a cell is about to run, or the session has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_INTERVAL_S, self._look)

    def _look(self) -> None:
        try:
            usage = self._usage()
        except OSError:
            return  # the session has just been closed
        if (breach := self._breach(usage)) is None:
            self._look_later()
            return
        logger.warning("session: used %s while no cell ran; closing it", breach)
        self._end()

    def _breach(self, usage: Usage) -> str | None:
        cpu_time_s = usage.cpu_time_s - self._before_s
        if cpu_time_s > _CPU_TIME_S:
            return f"{cpu_time_s:.1f} s of CPU"
        if usage.memory_bytes > self._limits.memory_bytes:
            return f"{usage.memory_bytes} bytes of memory"
        return f"{usage.num_tasks} tasks" if usage.num_tasks > self._limits.max_tasks else None

    def _usage(self) -> Usage:
        return self._slot.meter.read(memory_bytes=self._limits.memory_bytes, max_tasks=self._limits.max_tasks)
