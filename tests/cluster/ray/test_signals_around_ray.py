"""A signal that comes while Ray starts or ends: the run has set its handlers, and Ray would put others in their place."""

import os
import signal
import subprocess
import sys
import time

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.slow]  # two starts of Ray, of some seconds each

_DRIVER = """
import asyncio
import sys
from pathlib import Path

from agentrl.cluster.ray.runtime import guarded_run, ray_runtime
from agentrl.runners.command_line import run_command


async def stages():
    with guarded_run() as temp_dir:
        for stage in ("first", "second"):
            print(f"starting the {stage}", flush=True)
            with ray_runtime(num_cpus=1, temp_dir=temp_dir, user_folder=temp_dir, keep_logs_in=temp_dir):
                await asyncio.sleep(0.1)
                print(f"ending the {stage}", flush=True)


sys.exit(run_command(stages))
"""


@pytest.mark.parametrize("moment", ["starting the first", "ending the first", "starting the second"])
def test_a_run_is_stopped_with_its_line_and_its_status(moment: str):
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    while driver.stdout.readline().strip() != moment:
        assert driver.poll() is None
    time.sleep(0.5)  # well within it
    os.kill(driver.pid, signal.SIGTERM)
    _, errors = driver.communicate(timeout=100)
    assert (driver.returncode, "stopped by SIGTERM; the same command resumes" in errors) == (
        128 + signal.SIGTERM,
        True,
    ), errors
