"""A sink in a thread of its own, so that a tracker that fails, hangs or is slow never delays a step."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping

from agentrl.observability.logs import SINK_THREADS
from agentrl.observability.sinks.base import Sink
from agentrl.user_code import contained, described

logger = logging.getLogger(__name__)

MAX_WAITING_ROWS = 1000
"""Rows that wait for a slow sink; further ones are lost."""

Row = tuple[int, Mapping[str, float]]


class SinkThread:
    """Sends rows to one sink. Whatever is wrong with it leads to one warning, and to a count of the lost rows."""

    def __init__(
        self, name: str, open_sink: Callable[[], Sink], *, retry_s: float = 30.0, silence_s: float = 60.0
    ) -> None:
        """Open the sink with the first row; if that fails, rows wait, and it is tried again after `retry_s`.

        A call that takes longer than `silence_s` is reported while it lasts.
        """
        self._name, self._open_sink, self._retry_s, self._silence_s = name, open_sink, retry_s, silence_s
        self._rows: queue.Queue[Row | None] = queue.Queue()
        self._ends = threading.Event()
        self._busy_since: float | None = None
        self._has_warned = False
        self._num_refused = self._num_accepted = 0  # counted by the caller's thread
        self._num_failed = self._num_handled = 0  # by the sink's
        self._num_given_up = 0
        self._thread = threading.Thread(target=self._run, name=f"{SINK_THREADS}{name}", daemon=True)

    @property
    def num_lost(self) -> int:
        """Rows that the sink did not take."""
        return self._num_refused + self._num_failed + self._num_given_up

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Hand over a row; it is lost if too many wait."""
        if self._thread.ident is None:
            self._thread.start()
        if self._rows.qsize() >= MAX_WAITING_ROWS:
            self._num_refused += 1
            self._warn(f"{MAX_WAITING_ROWS} steps wait for it, and further ones are lost")
            return
        busy_since = self._busy_since
        if busy_since is not None and time.monotonic() - busy_since > self._silence_s:
            self._warn(f"no answer for {self._silence_s:.0f} s")
        self._num_accepted += 1
        self._rows.put((step, metrics))

    def end(self) -> None:
        """Let the thread end after the rows that wait; `join` must follow."""
        self._ends.set()
        self._rows.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the rows to be sent; what is left after the timeout is given up."""
        if self._thread.ident is None:
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._num_given_up = self._num_accepted - self._num_handled
            self._warn(f"no answer in the last {timeout_s:.0f} s of the run")
        if self.num_lost:
            logger.info("sink %s: lost %d steps", self._name, self.num_lost)

    def _run(self) -> None:
        sink = self._opened()
        while (row := self._rows.get()) is not None:
            if sink is None or not self._called(lambda row=row, sink=sink: sink.log(*row)):
                self._num_failed += 1
            self._num_handled += 1
        if sink is not None:
            self._called(sink.close)

    def _opened(self) -> Sink | None:
        """Return the sink, or None if it could not be opened before the end of the run."""
        sinks: list[Sink] = []
        while not self._called(lambda: sinks.append(self._open_sink())):
            if self._ends.wait(self._retry_s):
                return None
        return sinks[0]

    def _called(self, function: Callable[[], None]) -> bool:
        self._busy_since = time.monotonic()
        try:
            contained(function)
        except Exception as error:  # noqa: BLE001 - trackers raise anything
            self._warn(described(error))
            return False
        finally:
            self._busy_since = None
        return True

    def _warn(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("sink %s: %s; no step waits for it, and `metrics.jsonl` has them all", self._name, reason)


def sink_hangs() -> bool:
    """Return whether a sink of a run that has ended did not come to its end."""
    return any(thread.name.startswith(SINK_THREADS) for thread in threading.enumerate())
