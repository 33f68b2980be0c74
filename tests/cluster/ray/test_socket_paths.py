"""Ray's sockets lie in the folder for temporary files, whose name may be too long for them."""

from pathlib import Path

import pytest

from agentrl.cluster.ray.runtime import ray_runtime
from agentrl.errors import ConfigError


@pytest.mark.ray
def test_a_folder_with_too_long_a_name_is_refused_with_the_way_out(tmp_path: Path):
    folder = tmp_path / ("scratch" * 10)
    folder.mkdir()
    runtime = ray_runtime(num_cpus=1, temp_dir=folder, user_folder=tmp_path, keep_logs_in=tmp_path)
    with pytest.raises(ConfigError, match=r"AF_UNIX path length cannot exceed 107 bytes.*`TMPDIR`"), runtime:
        pass
