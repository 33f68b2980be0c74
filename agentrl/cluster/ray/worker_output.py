"""Output of workers, forwarded by Ray: agentrl's records are logged as the driver's own, the rest to `run.log` only.

Each process has a budget of lines, since a tool or reward may print on every call.
"""

import logging
import threading
from collections.abc import Callable
from typing import Any

from ray._private import worker as ray_worker
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from agentrl import clock
from agentrl.observability.logs import ONLY_IN_FILE, is_own, record_of

logger = logging.getLogger(__name__)

_RAY_HANDLER = "ray_print_logs"
"""Ray's handler that prints to the driver's console."""
_AUTOSCALER = "autoscaler"
"""Sender of reports about clusters that grow by themselves."""
_MAX_LINES = 500
_LINES_PER_S = 1 / 6
"""Rate at which a budget refills."""
_MAX_LINE_CHARACTERS = 1000


class WorkerOutput:
    """Logs Ray's batches of lines: `{"ip", "pid", "actor_name", "lines", ...}`."""

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        """Take the clock of the budgets."""
        self._now = now
        self._budgets: dict[tuple[Any, Any], _LineBudget] = {}
        self._lock = threading.Lock()

    def take(self, batch: dict[str, Any]) -> None:
        """Log the lines of one process."""
        if batch.get("pid") == _AUTOSCALER:
            return
        process = (batch.get("ip"), batch.get("pid"))
        with self._lock:
            budget = self._budgets.setdefault(process, _LineBudget(self._now()))
        name = f"{batch.get('actor_name') or 'worker'} (pid {batch.get('pid')})"
        for line in batch["lines"]:
            record = record_of(line)
            if record is not None and is_own(record):
                if logging.getLogger(record.name).isEnabledFor(record.levelno):
                    logging.getLogger(record.name).handle(record)
            elif record is not None:  # of the user's code, or of a library
                self._print(name, f"{record.levelname} {record.name}: {record.getMessage()}", budget)
            elif line.strip():
                self._print(name, line, budget)

    def _print(self, name: str, line: str, budget: "_LineBudget") -> None:
        num_left_out = budget.num_left_out
        if not budget.spend(self._now()):
            if not budget.has_warned:
                budget.has_warned = True
                logger.warning(
                    "%s: printed more than %d lines; dropping most further lines, a tool or reward may print on every call",
                    name,
                    _MAX_LINES,
                )
            return
        if num_left_out:
            logger.info("%s: %d printed lines dropped", name, num_left_out, extra=ONLY_IN_FILE)
        logger.info("%s: %s", name, line[:_MAX_LINE_CHARACTERS], extra=ONLY_IN_FILE)


class _LineBudget:
    """The lines that one process may still print into the log."""

    def __init__(self, now: float) -> None:
        self.has_warned = False
        """Set by the first dropped line; warned only once."""
        self.num_left_out = 0
        """Lines dropped since the last printed one."""
        self._left = float(_MAX_LINES)
        self._filled_at = now

    def spend(self, now: float) -> bool:
        """Return whether one more line may be printed; count it as dropped otherwise."""
        self._left = min(_MAX_LINES, self._left + (now - self._filled_at) * _LINES_PER_S)
        self._filled_at = now
        if self._left < 1:
            self.num_left_out += 1
            return False
        self._left -= 1
        self.num_left_out = 0
        return True


def log_worker_output() -> None:
    """Replace Ray's console output of workers; call it after `ray.init(log_to_driver=True)`."""
    assert ray_worker.global_worker.connected
    global_worker_stdstream_dispatcher.remove_handler(_RAY_HANDLER)
    # Ray removes the handler of that name itself when it shuts down.
    global_worker_stdstream_dispatcher.add_handler(_RAY_HANDLER, WorkerOutput().take)
