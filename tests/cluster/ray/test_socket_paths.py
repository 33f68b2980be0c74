"""Ray's sockets lie in the folder for temporary files, whose name may be too long for them."""

from pathlib import Path

import pytest

from agentrl.cluster.ray.runtime import ray_runtime
from agentrl.errors import ConfigError


def test_a_folder_with_too_long_a_name_is_refused_with_the_way_out_before_ray_starts(tmp_path: Path):
    folder = Path("/tmp") / ("scratch" * 10)
    runtime = ray_runtime(num_cpus=1, temp_dir=folder / "agentrl-1", user_folder=tmp_path, keep_logs_in=tmp_path)
    with pytest.raises(ConfigError, match=rf"`{folder}`.* bytes too long .*`TMPDIR`"), runtime:
        pass
