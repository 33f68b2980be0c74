"""Ray's sockets lie in the folder for temporary files, whose name may be too long for them."""

import subprocess
import sys
from pathlib import Path

import pytest

_START = """
import sys
from pathlib import Path
from agentrl.cluster.ray.runtime import ray_runtime
folder, user_folder = map(Path, sys.argv[1:])
with ray_runtime(num_cpus=1, temp_dir=folder, user_folder=user_folder, keep_logs_in=user_folder):
    print("started")
"""


@pytest.mark.ray
def test_a_folder_with_too_long_a_name_is_refused_with_the_way_out(tmp_path: Path):
    folder = tmp_path / ("scratch" * 10)
    folder.mkdir()
    # A process of its own: in this one, another test may have started Ray.
    command = [sys.executable, "-c", _START, str(folder), str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    *_, last = ended.stderr.strip().splitlines()
    assert last.startswith("agentrl.errors.ConfigError: ")
    assert "AF_UNIX path length cannot exceed 107 bytes" in last
    assert "`TMPDIR`" in last
    assert not ended.stdout
