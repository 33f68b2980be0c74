"""The end of Ray's control store is noticed, also if it comes before anybody waits for it."""

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

from agentrl.cluster.ray.lost_ray import wait_until_lost, watch_control_store

control_store = subprocess.Popen([sys.argv[1], "60"])
while open(f"/proc/{control_store.pid}/comm").read().strip() != "gcs_server":
    pass
if sys.argv[2] == "many files":
    files = [os.dup(0) for _ in range(1100)]
watch_control_store()
if sys.argv[2] == "ended before":
    control_store.kill()
    control_store.wait()
threading.Timer(0.2, control_store.kill).start()
print(wait_until_lost())
"""


@pytest.mark.parametrize("case", ["plain", "many files", "ended before"])
def test_the_end_of_the_control_store_is_noticed(tmp_path: Path, case: str):
    control_store = shutil.copy(shutil.which("sleep") or "", tmp_path / "gcs_server")
    command = [sys.executable, "-c", f"import resource; resource.setrlimit(7, (4096, 4096))\n{_DRIVER}"]
    done = subprocess.run([*command, control_store, case], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "True"


def test_a_process_without_ray_has_lost_nothing():
    code = "from agentrl.cluster.ray import lost_ray as ray; ray.watch_control_store(); print(ray.wait_until_lost())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
