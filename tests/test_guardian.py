import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import contextlib, os, signal, subprocess, sys, time
import psutil
from agentrl.cluster.ray.runtime import guarded_run
with guarded_run() as temp_dir:
    code = "import time; print('up', flush=True); time.sleep(100)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()  # its environment is to be seen
    (temp_dir / "file").write_text("x")
    print(child.pid, temp_dir, flush=True)
    def guardians():
        found = set()
        for one in psutil.Process().children():
            with contextlib.suppress(psutil.Error):  # of one that is dead and not yet waited for
                if "agentrl.guardian" in one.cmdline():
                    found.add(one.pid)
        return found
    if "unguarded" in sys.argv:
        [killed] = guardians()
        os.kill(killed, signal.SIGKILL)
    if "finish" in sys.argv:
        own_log = open(temp_dir / "log", "w")
    else:
        time.sleep(100)
"""


def start(*arguments: str, stderr_file: Path | None = None) -> tuple[subprocess.Popen[str], int, Path]:
    with contextlib.nullcontext() if stderr_file is None else stderr_file.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True
        )
    assert process.stdout is not None
    pid, temp_dir = process.stdout.readline().split()
    return process, int(pid), Path(temp_dir)


def gone(pid: int) -> bool:
    try:
        return "State:\tZ" in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True


def wait_until(condition, timeout_s: float) -> bool:
    limit = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < limit:
        time.sleep(0.1)
    return condition()


@pytest.mark.slow
def test_sigkill_of_the_run_leaves_no_process_and_no_file():
    process, child, temp_dir = start()
    assert temp_dir.exists()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert wait_until(lambda: gone(child) and not temp_dir.exists(), timeout_s=60)


def test_a_run_that_ends_well_leaves_nothing_and_is_not_killed_itself():
    process, child, temp_dir = start("finish")
    assert process.wait(timeout=60) == 0
    assert wait_until(lambda: gone(child), timeout_s=60)
    assert not temp_dir.exists()


def test_a_run_that_ends_as_its_guardian_is_killed_leaves_nothing_either():
    process, child, temp_dir = start("finish", "unguarded")
    assert process.wait(timeout=60) == 0
    assert wait_until(lambda: gone(child), timeout_s=60)
    assert not temp_dir.exists()
