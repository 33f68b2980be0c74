"""Lines on stderr, as text or as one JSON object each; never with code or output of a program."""

import logging
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson

_OWN_ATTRIBUTES = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}


class _JsonLines(logging.Formatter):
    """Formats a record as JSON: time, level, logger, message, and whatever `extra` it was logged with."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in record.__dict__.items() if name not in _OWN_ATTRIBUTES}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def configure_logging(log_format: Literal["text", "json"], log_level: str) -> None:
    """Send this process's log lines to stderr."""
    for unused in ("logThreads", "logMultiprocessing", "logProcesses"):  # no line shows them, and each costs time
        setattr(logging, unused, False)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonLines() if log_format == "json" else logging.Formatter("%(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=log_level.upper(), handlers=[handler], force=True)
