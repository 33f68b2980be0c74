"""Terminal and log output of an error that ends a command."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from agentrl.errors import EngineError, WorkerDiedError
from agentrl.observability.logs import configure_logging
from agentrl.runners.command_line import EXIT_FAILED, run_command

NOTE = "raised in actor 1: ray::ModelWorker.update()\n  File model.py, line 3, in update\nEngineError: ours"


@pytest.mark.usefixtures("restored_logging")
def test_an_error_of_ours_says_where_it_was_raised_and_the_log_has_the_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    configure_logging(tmp_path, console=Console())

    async def command() -> None:
        await asyncio.sleep(0)
        error = EngineError("ours")
        error.add_note(NOTE)
        raise error

    assert run_command(command) == EXIT_FAILED
    shown = capsys.readouterr()
    assert shown.err == "error: ours (raised in actor 1; see run.log)\n"
    assert shown.out == ""
    assert "line 3, in update" in (tmp_path / "run.log").read_text()


def test_ctrl_c_while_modules_are_imported_is_one_line():
    command = [sys.executable, "-X", "importtime", "-m", "agentrl.runners.evaluate", "configs/demo.yaml"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.endswith(" agentrl.errors\n"))
        process.send_signal(signal.SIGINT)
        [shown] = [line for line in process.stderr if not line.startswith("import time:")]
    assert shown == "stopped by SIGINT before anything was started\n"
    assert process.returncode == 130


def test_the_remaining_errors_of_a_stopped_command_are_reported(capsys: pytest.CaptureFixture[str]):
    async def command() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(10)

    assert run_command(command, when_stopped="nothing was measured") == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped by SIGTERM; nothing was measured\n"


def test_a_signal_to_the_group_that_ends_a_worker_first_is_still_the_reason(capsys: pytest.CaptureFixture[str]):
    async def command() -> None:
        asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGTERM)
        raise WorkerDiedError("loop worker 0: died")

    assert run_command(command, when_stopped="nothing was measured") == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped by SIGTERM; nothing was measured\n"


_SIGNALLED = """
import asyncio, os, signal, subprocess, sys, time
from agentrl.cluster.ray.lost_ray import watch_control_store
from agentrl.runners import command_line

command_line._CLOSE_S = 0.5
ray = subprocess.Popen([sys.argv[1], "60"])
while open(f"/proc/{ray.pid}/comm").read().strip() != "gcs_server":
    pass
watch_control_store()


async def command():
    if sys.argv[2] == "a thread hangs":
        asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    os.kill(os.getpid(), signal.SIGTERM)
    if sys.argv[2] != "it ends":
        ray.kill()
    if sys.argv[2] == "the event loop hangs":
        time.sleep(60)
    try:
        await asyncio.sleep(60)
    finally:
        if sys.argv[2] == "closing hangs":
            time.sleep(60)


status = command_line.run_command(command)
ray.kill()
time.sleep(2)
sys.exit(status + 1)
"""


@pytest.mark.parametrize("case", ["it ends", "the event loop hangs", "closing hangs", "a thread hangs"])
def test_a_signalled_command_ends_without_its_ray_only_while_it_closes(case: str, tmp_path: Path):
    ray = tmp_path / "gcs_server"
    ray.write_bytes(Path("/bin/sleep").read_bytes())
    ray.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED, str(ray), case], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 128 + signal.SIGTERM + (case == "it ends"), done.stderr
    assert done.stderr.count("stopped by SIGTERM; ") == 1


def test_a_tracker_that_hangs_does_not_keep_the_process_from_its_end():
    """Libraries wait for their servers in exit handlers."""
    command = [sys.executable, "-m", "tests.runners.exit_with_hanging_sink"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (3, "lost 1\n"), ended.stderr
