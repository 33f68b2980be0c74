"""Output of workers on its way into the log of the run."""

import io
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl.cluster.ray.worker_output import WorkerOutput
from agentrl.observability.logs import configure_logging

pytestmark = pytest.mark.usefixtures("restored_logging")

WORKER = """
import logging
from agentrl.observability.logs import configure_worker_logging, repeating
configure_worker_logging()
for _ in range(25):
    logging.getLogger("agentrl.observability.loop_lag").warning("late by %d s", 3, extra=repeating("my_tool.py"))
logging.getLogger("my_tool").warning("called")
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("agentrl.tools").exception("failed")
"""


@pytest.fixture
def console(tmp_path: Path) -> io.StringIO:
    file = io.StringIO()
    configure_logging(tmp_path, console=Console(file=file))
    return file


def batch(*lines: str, pid: int = 7) -> dict[str, Any]:
    return {"ip": "127.0.0.1", "pid": pid, "actor_name": "AgentLoopWorker", "lines": list(lines), "is_err": False}


def test_a_tool_that_floods_is_kept_off_the_console_and_bounded_in_the_log(console: io.StringIO, tmp_path: Path):
    output = WorkerOutput(now=lambda: 0.0)
    for _ in range(100):
        output.take(batch(*["x" * 5000] * 100))
    output.take(batch("another process", pid=8))
    log = (tmp_path / "run.log").read_text()
    assert len(log) < 1_000_000
    assert log.count("AgentLoopWorker (pid 7): xxx") == 500
    assert "AgentLoopWorker (pid 8): another process" in log
    [line] = console.getvalue().splitlines()
    assert "AgentLoopWorker (pid 7): printed more than 500 lines" in line


def test_a_process_may_print_again_in_the_next_hour_and_its_warnings_are_counted(console: io.StringIO, tmp_path: Path):
    now = 0.0
    output = WorkerOutput(now=lambda: now)
    for hour in range(3):
        now = 3600.0 * hour
        output.take(batch(*["x"] * 600, pid=8))
    assert (tmp_path / "run.log").read_text().count("(pid 8): x\n") == 1500
    [line] = console.getvalue().splitlines()
    assert "AgentLoopWorker (pid 8): printed more than 500 lines in an hour" in line
    output.take(batch(*["x"] * 600, pid=9))
    assert "(pid 9): printed more than 500 lines" in console.getvalue().splitlines()[-1]


def test_records_of_workers_are_logged_and_repeats_are_counted(console: io.StringIO, tmp_path: Path):
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    WorkerOutput().take(batch(*done.stderr.splitlines()))
    shown = [line.partition(" ")[2] for line in console.getvalue().splitlines()]
    assert shown[:2] == ["WARNING late by 3 s", "WARNING late by 3 s (10 times so far)"]
    assert "called" not in console.getvalue()
    log = (tmp_path / "run.log").read_text()
    assert "AgentLoopWorker (pid 7): WARNING my_tool: called" in log
    assert "ERROR agentrl.tools: failed\nTraceback" in log
    assert log.count("late by 3 s") == 2


def test_what_looks_like_a_record_and_is_none_is_printed(console: io.StringIO, tmp_path: Path):
    WorkerOutput().take(batch("agentrl-record {", 'agentrl-record {"name": 3}', "agentrl-record []"))
    assert (tmp_path / "run.log").read_text().count("agentrl-record") == 3


def test_levels_stay_those_of_the_driver(console: io.StringIO):
    logging.getLogger("agentrl").setLevel(logging.WARNING)
    record = 'agentrl-record {"name": "agentrl.engine", "level": 20, "message": "ready", "extra": {}}'
    WorkerOutput().take(batch(record))
    assert console.getvalue() == ""
