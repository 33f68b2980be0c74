"""The end of Ray's control store is noticed, unless the run itself closes Ray."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_DRIVER = """
import os
import subprocess
import sys
import threading

from agentrl.cluster.ray.lost_ray import is_closing, wait_until_lost

control_store = subprocess.Popen([sys.argv[1], "60"])
if sys.argv[2] == "many files":
    files = [os.dup(0) for _ in range(1100)]
if sys.argv[2] == "closing":
    is_closing.set()
threading.Timer(0.2, control_store.kill).start()
print(wait_until_lost())
"""


@pytest.mark.parametrize(("case", "expected"), [("plain", "True"), ("many files", "True"), ("closing", "False")])
def test_the_end_of_the_control_store_is_lost_ray_unless_the_run_closes(tmp_path: Path, case: str, expected: str):
    control_store = shutil.copy(shutil.which("sleep") or "", tmp_path / "gcs_server")
    command = [sys.executable, "-c", f"import resource; resource.setrlimit(7, (4096, 4096))\n{_DRIVER}"]
    done = subprocess.run([*command, control_store, case], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == expected


def test_a_process_without_ray_has_lost_nothing():
    code = "from agentrl.cluster.ray.lost_ray import wait_until_lost; print(wait_until_lost())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
