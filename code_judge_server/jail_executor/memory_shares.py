"""The memory of processes that share much of it, counted beside the event loop: it can take seconds for many large ones."""

import threading
import time

from code_judge_server import process_tree

_PAUSE = 4
"""After a count, so many times as long as it took: a job keeps the server busy for a fifth of one core at most."""


class MemoryShares:
    """Counts the shares of one job's processes, again and again while they are asked for."""

    def __init__(self) -> None:
        self._latest = 0
        self._running: _Count | None = None
        self._next_at = 0.0

    def latest(self, pids: list[int], *, enough: int) -> int:
        """Return what was counted last, 0 at first, and begin to count `pids` where that is due.

        Args:
            pids: Processes of the job.
            enough: In bytes: with more than this the count ends.

        Raises:
            OSError: the processes could not be looked at.
        """
        now = time.monotonic()
        if self._running is not None and self._running.ended:
            self._latest = self._running.result()
            self._next_at = now + _PAUSE * self._running.took_s
            self._running = None
        if self._running is None and now >= self._next_at:
            self._running = _Count(pids, enough)
        return self._latest


class _Count:
    def __init__(self, pids: list[int], enough: int) -> None:
        self.ended = False
        self.took_s = 0.0
        self._bytes = 0
        self._error: OSError | None = None
        threading.Thread(target=self._count, args=(pids, enough), name="memory shares", daemon=True).start()

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return self._bytes

    def _count(self, pids: list[int], enough: int) -> None:
        began_at = time.monotonic()
        try:
            self._bytes = process_tree.proportional_memory_bytes(pids, enough=enough)
        except OSError as error:
            self._error = error
        self.took_s = time.monotonic() - began_at
        self.ended = True
