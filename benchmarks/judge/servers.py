"""Starts and stops the compared judges, each in a process of its own on a free port of loopback."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

ROOT = Path(__file__).resolve().parents[2]
_ANNOUNCEMENT = "listening on "
_STOP_TIMEOUT_S = 30.0
_LOG_TAIL_BYTES = 4000

OURS = (sys.executable, "-m", "code_judge_server", "--port", "0", "--require-isolation", "D")
"""Our judge with the best tier that the machine gives; the benchmarks print it."""
TIER_D = (*OURS, "--use-isolation", "D")
"""Our judge without isolation: it starts an interpreter per program."""
PYTHON_PER_PROGRAM = (sys.executable, "-m", "benchmarks.judge.subprocess_judge")
"""A judge like most open ones."""
BUBBLEWRAP = (*PYTHON_PER_PROGRAM, "--bubblewrap")
"""The same, isolated by bubblewrap."""


class ServerError(Exception):
    """A judge did not start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running judge that answers."""

    name: str
    url: str
    process: psutil.Popen
    log: IO[bytes]

    def log_end(self) -> str:
        """Return the end of its log."""
        size = self.log.seek(0, os.SEEK_END)
        return os.pread(self.log.fileno(), _LOG_TAIL_BYTES, max(size - _LOG_TAIL_BYTES, 0)).decode(errors="replace")


@contextlib.contextmanager
def running(name: str, command: Sequence[str], *arguments: str, temporary: str | None = None) -> Iterator[Server]:
    """Start a judge, and stop it at the end.

    Args:
        name: Name in tables.
        command: One of the constants of this module.
        arguments: More arguments for it.
        temporary: Its folder for temporary files, if not the system's.

    Raises:
        ServerError: it ends before it listens; the message has the end of its log.
    """
    with tempfile.TemporaryFile() as log:
        process = psutil.Popen(
            [*command, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env=os.environ if temporary is None else os.environ | {"TMPDIR": temporary},
        )
        try:
            server = Server(name=name, url=_announced_url(process), process=process, log=log)
            if not server.url:
                raise ServerError(
                    f"{name}: it ended with exit code {process.wait()} before it listened: {server.log_end()}"
                )
            yield server
        finally:
            _stop(process)


def _announced_url(process: psutil.Popen) -> str:
    for line in process.stdout:
        if line.startswith(_ANNOUNCEMENT):
            return line.removeprefix(_ANNOUNCEMENT).strip()
    return ""


def _stop(process: psutil.Popen) -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.communicate(timeout=_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
