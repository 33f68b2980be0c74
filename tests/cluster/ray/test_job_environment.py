"""A run inside `ray job submit`, which has set a runtime environment for all processes of the job."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray

from agentrl.cluster.ray.runtime import _runtime_env

ROOT = Path(__file__).resolve().parents[3]
JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
SHIPPED = {"working_dir": "gcs://_ray_pkg_0a62fe483960e4e9.zip"}
START = """
import sys
from pathlib import Path
from agentrl.cluster.ray.runtime import ray_runtime
temp = Path(sys.argv[2])
with ray_runtime(address=sys.argv[1], num_cpus=1, temp_dir=temp, user_folder=temp / "configs", keep_logs_in=temp):
    pass
"""


@pytest.fixture
def configs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a config, for a process that searches no other one."""
    library = os.path.dirname(os.__file__)
    monkeypatch.setattr(sys, "path", sys.path[sys.path.index(library) :])
    monkeypatch.delenv(JOB, raising=False)
    (tmp_path / "configs").mkdir()
    return tmp_path / "configs"


def set_job(monkeypatch: pytest.MonkeyPatch, runtime_env: dict[str, Any] | None) -> None:
    monkeypatch.setenv(JOB, json.dumps({"runtime_env": runtime_env, "metadata": {}}))


def test_outside_of_a_job_workers_get_a_folder_and_a_path_however_empty(configs: Path, tmp_path: Path):
    env = _runtime_env(configs, tmp_path, on_cluster=True)
    assert (list(env), env["env_vars"]) == (["env_vars", "working_dir"], {"PYTHONPATH": ""})


def test_a_job_keeps_its_own_where_the_run_has_nothing_to_put_there(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_job(monkeypatch, SHIPPED | {"env_vars": {"PYTHONPATH": "nowhere", "A": "1"}})
    assert _runtime_env(configs, tmp_path, on_cluster=True) == {}


def test_modules_beside_the_config_and_folders_that_are_searched_are_sent_all_the_same(
    configs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    set_job(monkeypatch, SHIPPED | {"env_vars": {"PYTHONPATH": str(tmp_path)}})
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (configs / "a_tool.py").touch()
    env = _runtime_env(configs, tmp_path, on_cluster=True)
    assert env["env_vars"] == {"PYTHONPATH": str(tmp_path)}
    assert "working_dir" in env


@pytest.mark.ray
@pytest.mark.timeout(180)
def test_a_job_with_a_working_folder_joins_also_where_the_run_sends_its_own(local_ray: Path, tmp_path: Path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "a_tool.py").touch()
    command = [sys.executable, "-c", START, ray.get_runtime_context().gcs_address, str(tmp_path)]
    environment = os.environ | {JOB: json.dumps({"runtime_env": SHIPPED}), "PYTHONPATH": str(ROOT)}
    environment |= {
        "RAY_AUTH_MODE": "token",
        # Else `127.0.0.1` stands for an interface, where this Ray is not.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    }
    joined = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert joined.returncode == 0, joined.stderr
