"""Logging of a run: to the terminal, in step with the progress bar, and to `run.log` in the run directory.

`run.log` has every record; the terminal none that is `ONLY_IN_FILE`, and of some a shorter text (`repeating`, `aligned`).
INFO and up from agentrl and the judge, WARNING and up from other packages. A worker writes its records to its standard error
as JSON lines; the driver parses them (`record_of`) and logs them as its own.
"""

import logging
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentrl.errors import NO_ROOM

ONLY_IN_FILE = {"only_in_file": True}
"""`extra` of a record that is not for the terminal: another process's traceback, or what happened to a single trajectory."""
SINK_THREADS = "sink-"
"""Prefix of the names of threads in which trackers' libraries run; what those log themselves is only in the file."""
_RECORD_MARK = "agentrl-record "
_OWN_LOGGERS = ("agentrl", "code_judge_server")
_HANDLER_PREFIX = "agentrl."
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLAIN_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def configure_logging(run_dir: Path | None, *, console: Console) -> None:
    """Send the log records of this process to `console`, and to `run.log` in `run_dir` if given.

    A second call replaces the handlers of the first. `console` is the progress bar's, so that records appear above the bar;
    without a terminal they are plain lines that are never wrapped.
    """
    _remove_handlers()
    _add_handler(_console_handler(console))
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        _add_handler(_file_handler(run_dir / "run.log"))


def configure_worker_logging() -> None:
    """Send this worker's warnings and agentrl's INFO records to standard error, in the form of `record_of`."""
    _remove_handlers()
    handler = _RecordHandler(sys.stderr)
    handler.set_name(f"{_HANDLER_PREFIX}worker")
    _add_handler(handler)


def record_of(line: str) -> logging.LogRecord | None:
    """Return the log record that a worker wrote as this line; None for any other line."""
    _, mark, content = line.partition(_RECORD_MARK)
    if not mark:
        return None
    try:
        fields = orjson.loads(content)
        record = logging.LogRecord(fields["name"], fields["level"], "", 0, fields["message"], None, None)
        record.__dict__.update(fields["extra"])
    except (orjson.JSONDecodeError, LookupError, TypeError, AttributeError):
        return None
    return record


def is_own(record: logging.LogRecord) -> bool:
    """Return whether agentrl or the judge logged the record."""
    return record.name.partition(".")[0] in _OWN_LOGGERS


def repeating(cause: str, *, on_console: str = "") -> dict[str, str]:
    """Return the `extra` of a frequent record: equal causes are logged the 1st, 10th, 100th ... time in the run only.

    With `on_console`, the text for the terminal, this holds there alone: `run.log` has every record in full.
    """
    return {"cause": cause} | ({"on_console": on_console} if on_console else {})


def aligned(cells: Sequence[str]) -> dict[str, Sequence[str]]:
    """Return the `extra` of a record in columns: a narrow terminal shows as many as fit in a line, and the last one."""
    return {"cells": cells}


def describe_repeats() -> str:
    """Return the number of each warning that came more than once; empty if none did."""
    counts = [f"{cause} ({number} times)" for cause, number in _REPEATS.warnings.most_common() if number > 1]
    return ", ".join(counts)


class _RecordHandler(logging.StreamHandler[Any]):
    """Writes records as JSON lines; see `record_of`."""

    def format(self, record: logging.LogRecord) -> str:
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{logging.Formatter().formatException(record.exc_info)}"
        extra = {name: value for name, value in record.__dict__.items() if name in ("cause", *ONLY_IN_FILE)}
        fields: Mapping[str, Any] = {"name": record.name, "level": record.levelno, "message": message, "extra": extra}
        return _RECORD_MARK + orjson.dumps(fields, default=str).decode()


class _RepeatFilter(logging.Filter):
    """Passes the 1st, 10th, 100th ... record of one cause, with the count; several handlers may filter one record."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()
        self.warnings: Counter[str] = Counter()
        """Number of warnings, keyed by cause."""

    def filter(self, record: logging.LogRecord) -> bool:
        cause = getattr(record, "cause", None)
        if cause is None:
            return True
        number: int | None = getattr(record, "repeat", None)
        if number is None:
            self._counts[cause] += 1
            number = self._counts[cause]
            record.__dict__["repeat"] = number
            if record.levelno >= logging.WARNING:
                self.warnings[cause] += 1
        return math.log10(number).is_integer()


_REPEATS = _RepeatFilter()
"""Shared by the process, since each stage configures logging anew."""


def _console_handler(console: Console) -> logging.Handler:
    if console.is_interactive:
        handler = _TerminalHandler(console)
        handler.setFormatter(_Formatter("%(message)s", is_console=True))
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(_Formatter(_PLAIN_FORMAT, datefmt="%H:%M:%S", is_console=True))
    handler.set_name(f"{_HANDLER_PREFIX}console")
    handler.addFilter(lambda record: not hasattr(record, "only_in_file") and not _is_of_tracker(record))
    handler.addFilter(_REPEATS)
    return handler


def _is_of_tracker(record: logging.LogRecord) -> bool:
    return (record.threadName or "").startswith(SINK_THREADS) and not is_own(record)


class _Formatter(logging.Formatter):
    """Adds the number of its repeats to a record's text, and takes the text for the console if there is one."""

    def __init__(self, form: str, datefmt: str | None = None, *, is_console: bool) -> None:
        super().__init__(form, datefmt)
        self._is_console = is_console

    def formatMessage(self, record: logging.LogRecord) -> str:
        text, number = getattr(record, "on_console", None), getattr(record, "repeat", 1)
        if text is not None and self._is_console:
            record.message = text
        if number > 1 and (text is None or self._is_console):
            record.message += f" ({number} times so far)"
        return super().formatMessage(record)


class _TerminalHandler(logging.Handler):
    """Prints records above the progress bar: the time, from WARNING on the level, and the text beside them."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        parts = [Text(time.strftime("%H:%M:%S", time.localtime(record.created)), style="dim", no_wrap=True)]
        if record.levelno >= logging.WARNING:
            parts.append(Text(record.levelname, style=f"logging.level.{record.levelname.lower()}", no_wrap=True))
        width = self._console.width - sum(len(part) + 1 for part in parts)
        cells: Sequence[str] | None = getattr(record, "cells", None)
        row = Table.grid(padding=(0, 1))
        row.add_row(*parts, Text(self.format(record) if cells is None else _fitting(cells, width)))
        try:
            self._console.print(row)
        except (OSError, ValueError):  # the terminal is gone
            self.handleError(record)


def _fitting(cells: Sequence[str], width: int) -> str:
    """Return as many cells as fit in a line of this width, and the last one."""
    *shown, last = cells
    while len("  ".join([*shown, last])) > width and shown:
        shown.pop()
    return "  ".join([*shown, last])


class _FileHandler(logging.FileHandler):
    """Drops lines silently on a full disk: other writes end the run with the reason."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not (isinstance(error, OSError) and error.errno in NO_ROOM):
            super().handleError(record)


def _file_handler(path: Path) -> logging.Handler:
    handler = _FileHandler(path, encoding="utf-8")
    handler.setFormatter(_Formatter(_FILE_FORMAT, is_console=False))
    handler.set_name(f"{_HANDLER_PREFIX}file")
    handler.addFilter(lambda record: hasattr(record, "on_console") or _REPEATS.filter(record))
    return handler


def _add_handler(handler: logging.Handler) -> None:
    logging.getLogger().addHandler(handler)
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(logging.INFO)


def _remove_handlers() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if (handler.name or "").startswith(_HANDLER_PREFIX):
            root.removeHandler(handler)
            handler.close()
