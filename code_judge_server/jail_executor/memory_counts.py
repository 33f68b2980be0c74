"""Slow counts of a job's memory, made beside the event loop: many large processes can take seconds."""

import threading
import time
from typing import Protocol

_PAUSE = 4
"""Pause after a count, in units of its duration: a job keeps the server busy for at most a fifth of a core."""


class Count(Protocol):
    """A function of `process_tree`."""

    def __call__(self, pids: list[int], *, enough: int) -> int:
        """Return the bytes of `pids`, or of the first of them that exceed `enough`."""
        ...


class MemoryCounts:
    """Counts memory of one job's processes, repeatedly while it is asked for.

    Args:
        count: The function to call.
        pause_s: Least time between two counts.
    """

    def __init__(self, count: Count, *, pause_s: float = 0.0) -> None:
        self._count = count
        self._pause_s = pause_s
        self._latest = 0
        self._running: _Running | None = None
        self._next_at = 0.0

    def latest(self, pids: list[int], *, enough: int) -> int:
        """Return the result of the last count, 0 at first, and start to count `pids` if a count is due.

        Args:
            pids: Processes of the job.
            enough: Bytes; a larger count stops.

        Raises:
            OSError: the processes could not be read.
        """
        now = time.monotonic()
        if self._running is not None and self._running.ended:
            self._latest = self._running.result()
            self._next_at = now + max(self._pause_s, _PAUSE * self._running.took_s)
            self._running = None
        if self._running is None and now >= self._next_at:
            self._running = _Running(self._count, pids, enough)
        return self._latest


class _Running:
    def __init__(self, count: Count, pids: list[int], enough: int) -> None:
        self.ended = False
        self.took_s = 0.0
        self._bytes = 0
        self._error: OSError | None = None
        threading.Thread(target=self._run, args=(count, pids, enough), name="memory counts", daemon=True).start()

    def result(self) -> int:
        if self._error is not None:
            raise self._error
        return self._bytes

    def _run(self, count: Count, pids: list[int], enough: int) -> None:
        began_at = time.monotonic()
        try:
            self._bytes = count(pids, enough=enough)
        except OSError as error:
            self._error = error
        self.took_s = time.monotonic() - began_at
        self.ended = True
