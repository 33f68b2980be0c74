"""Logging of a run: to the terminal, in step with the progress bar, and to `run.log` in the run directory.

INFO and up from agentrl and the judge, WARNING and up from everything else.
"""

import logging
import sys
from pathlib import Path

from rich.console import Console
from rich.highlighter import NullHighlighter
from rich.logging import RichHandler

from agentrl.errors import NO_ROOM

ONLY_IN_FILE = {"only_in_file": True}
"""As `extra` of a record: what is too long for the terminal, such as a traceback of another process."""
_OWN_LOGGERS = ("agentrl", "code_judge_server")
_HANDLER_PREFIX = "agentrl."
_FILE_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PLAIN_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"


def configure_logging(run_dir: Path | None, *, console: Console, level: int = logging.INFO) -> None:
    """Send the log records of this process to `console`, and to `run.log` in `run_dir` where one is given.

    Args:
        run_dir: made if it is missing; an existing `run.log` is appended to.
        console: the one that the progress bar uses too, so that records appear above the bar. Where it is no terminal,
            records are plain lines that are never wrapped.
        level: of agentrl's own loggers.

    A second call replaces what the first one set up.
    """
    _remove_handlers()
    handlers = [_console_handler(console)]
    if run_dir is not None:
        run_dir.mkdir(parents=True, exist_ok=True)
        handlers.append(_file_handler(run_dir / "run.log"))
    root = logging.getLogger()
    for handler in handlers:
        root.addHandler(handler)
    for name in _OWN_LOGGERS:
        logging.getLogger(name).setLevel(level)


def _console_handler(console: Console) -> logging.Handler:
    if console.is_interactive:
        handler = RichHandler(
            console=console,
            show_path=False,
            omit_repeated_times=False,
            log_time_format="%H:%M:%S",
            highlighter=NullHighlighter(),
        )
    else:
        handler = logging.StreamHandler(console.file)
        handler.setFormatter(logging.Formatter(_PLAIN_FORMAT, datefmt="%H:%M:%S"))
    handler.set_name(f"{_HANDLER_PREFIX}console")
    handler.addFilter(lambda record: not hasattr(record, "only_in_file"))
    return handler


class _FileHandler(logging.FileHandler):
    """Does without the lines that the disk has no room for: what else is to be written there ends the run, and says why."""

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not (isinstance(error, OSError) and error.errno in NO_ROOM):
            super().handleError(record)


def _file_handler(path: Path) -> logging.Handler:
    handler = _FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter(_FILE_FORMAT))
    handler.set_name(f"{_HANDLER_PREFIX}file")
    return handler


def _remove_handlers() -> None:
    root = logging.getLogger()
    for handler in list(root.handlers):
        if (handler.name or "").startswith(_HANDLER_PREFIX):
            root.removeHandler(handler)
            handler.close()
