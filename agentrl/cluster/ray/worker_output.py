"""Output of workers, forwarded by Ray: agentrl's records are logged as the driver's own, the rest to `run.log` only."""

import logging
from typing import Any

# No public call replaces Ray's printing of workers' output by another handler.
from ray._private.ray_logging import global_worker_stdstream_dispatcher

from agentrl.observability.logs import ONLY_IN_FILE, is_own, record_of

logger = logging.getLogger(__name__)

_RAY_HANDLER = "ray_print_logs"
"""Ray's handler that prints to the driver's console."""
_AUTOSCALER = "autoscaler"
"""Sender of reports about clusters that grow by themselves."""
_MAX_LINE_CHARACTERS = 1000


def take(batch: dict[str, Any]) -> None:
    """Log the lines of one process; Ray's batch is `{"ip", "pid", "actor_name", "lines", ...}`."""
    if batch.get("pid") == _AUTOSCALER:
        return
    for line in batch["lines"]:
        record = record_of(line)
        if record is not None and is_own(record):
            if logging.getLogger(record.name).isEnabledFor(record.levelno):
                logging.getLogger(record.name).handle(record)
        elif record is not None:  # of the user's code, or of a library
            _print(batch, f"{record.levelname} {record.name}: {record.getMessage()}")
        elif line.strip():
            _print(batch, line)


def _print(batch: dict[str, Any], line: str) -> None:
    name = f"{batch.get('actor_name') or 'worker'} (pid {batch.get('pid')})"
    logger.info("%s: %s", name, line[:_MAX_LINE_CHARACTERS], extra=ONLY_IN_FILE)


def log_worker_output() -> None:
    """Replace Ray's console output of workers; call it after `ray.init(log_to_driver=True)`."""
    global_worker_stdstream_dispatcher.remove_handler(_RAY_HANDLER)
    # Ray removes the handler of that name itself when it shuts down.
    global_worker_stdstream_dispatcher.add_handler(_RAY_HANDLER, take)
