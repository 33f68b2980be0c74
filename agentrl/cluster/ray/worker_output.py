"""Output of workers, forwarded by Ray: agentrl's records are logged as the driver's own, the rest to `run.log` only.

The lines of a process are limited, since a tool or reward may print on every call.
"""

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

# No public call replaces Ray's printing of workers' output by another handler.
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from agentrl import clock
from agentrl.observability.logs import ONLY_IN_FILE, is_own, record_of, repeating

logger = logging.getLogger(__name__)

_RAY_HANDLER = "ray_print_logs"
"""Ray's handler that prints to the driver's console."""
_AUTOSCALER = "autoscaler"
"""Sender of reports about clusters that grow by themselves."""
_MAX_LINES_PER_HOUR = 500
_MAX_LINE_CHARACTERS = 1000


class WorkerOutput:
    """Logs Ray's batches of lines: `{"ip", "pid", "actor_name", "lines", ...}`."""

    def __init__(self, now: Callable[[], float] = clock.now) -> None:
        self._now = now
        self._num_lines: Counter[tuple[Any, Any, int]] = Counter()
        """Lines of each address and process, in each hour."""

    def take(self, batch: dict[str, Any]) -> None:
        """Log the lines of one process."""
        if batch.get("pid") == _AUTOSCALER:
            return
        for line in batch["lines"]:
            record = record_of(line)
            if record is not None and is_own(record):
                if logging.getLogger(record.name).isEnabledFor(record.levelno):
                    logging.getLogger(record.name).handle(record)
            elif record is not None:  # of the user's code, or of a library
                self._print(batch, f"{record.levelname} {record.name}: {record.getMessage()}")
            elif line.strip():
                self._print(batch, line)

    def _print(self, batch: dict[str, Any], line: str) -> None:
        key = (batch.get("ip"), batch.get("pid"), int(self._now() // 3600))
        self._num_lines[key] += 1
        name = f"{batch.get('actor_name') or 'worker'} (pid {batch.get('pid')})"
        if self._num_lines[key] <= _MAX_LINES_PER_HOUR:
            logger.info("%s: %s", name, line[:_MAX_LINE_CHARACTERS], extra=ONLY_IN_FILE)
        elif self._num_lines[key] == _MAX_LINES_PER_HOUR + 1:
            logger.warning(
                "%s: printed more than %d lines in an hour; dropping the others, a tool or reward may print on every call",
                name,
                _MAX_LINES_PER_HOUR,
                extra=repeating(name),
            )


def log_worker_output() -> None:
    """Replace Ray's console output of workers; call it after `ray.init(log_to_driver=True)`."""
    global_worker_stdstream_dispatcher.remove_handler(_RAY_HANDLER)
    # Ray removes the handler of that name itself when it shuts down.
    global_worker_stdstream_dispatcher.add_handler(_RAY_HANDLER, WorkerOutput().take)
