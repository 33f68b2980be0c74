"""An evaluation of a config with roles, pools and workers of another kind: the real command on the example of an extra role."""

from itertools import islice
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from tests.runners.run_process import finish_run

EXAMPLE = Path(__file__).resolve().parent.parent.parent / "examples" / "image_edit"


def config_with(tmp_path: Path, pools: str, roles: str) -> Path:
    """Write the example with other pools and roles beside its own; returns the file."""
    text = (EXAMPLE / "run.yaml").read_text()
    text = text.replace("policy: {num_processes: 1}", pools).replace("{actor_rollout: policy}", roles)
    for key in ("tool_config_path: ", "train_files: [", "model:\n  path: "):
        text = text.replace(key, f"{key}{EXAMPLE}/")
    (tmp_path / "image_worker.py").write_text((EXAMPLE / "image_worker.py").read_text())
    with (EXAMPLE / "validation.jsonl").open() as problems:
        (tmp_path / "problems.jsonl").write_text("".join(islice(problems, 2)))
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return file


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(400)
def test_an_evaluation_starts_workers_of_other_kinds_and_no_pool_of_a_model(tmp_path: Path):
    pools = "policy: {num_processes: 1}\n    samplers: {num_processes: 2, num_cpus: 0.5}"
    file = config_with(tmp_path, pools, "{actor: policy, rollout: samplers}")
    output = finish_run(
        tmp_path / "run",
        f"data.validation_files=[{tmp_path / 'problems.jsonl'}]",
        config=str(file),
        runner="evaluate",
        timeout_s=350,
    )
    assert "2 prompts, samples of each: 1" in output
    log = (tmp_path / "run" / "run.log").read_text()
    assert [name for name in ("policy", "samplers", "editors") if f" pool {name}: " in log] == ["samplers", "editors"]


def load(file: Path, *overrides: str) -> int:
    words = [f"data.validation_files=[{file.parent / 'problems.jsonl'}]", *overrides]
    return load_run_config(str(file), words, purpose=Purpose.EVALUATION).config.rollout.num_engines


def test_the_number_of_engines_is_that_of_the_pool_in_an_evaluation_too(tmp_path: Path):
    assert load(config_with(tmp_path, "policy: {num_processes: 8}", "{actor_rollout: policy}")) == 8


def test_a_layout_need_not_suit_servers_which_are_outside_of_it(tmp_path: Path):
    file = config_with(tmp_path, "policy: {num_processes: 2}", "{actor_rollout: policy}")
    assert load(file, "rollout.engine=openai", "rollout.openai.base_urls=['http://127.0.0.1:9/v1']") == 2


@pytest.mark.parametrize(
    ("pools", "roles", "words"),
    [
        ("policy: {num_processes: 1}", "{actor_rollout: nowhere}", "`cluster.roles.actor_rollout` is `nowhere`"),
        ("policy: {num_processes: 1}", "{actor_rollout_judge: policy}", "`cluster.roles` names `judge`"),
        ("policy: {}", "{actor_rollout: policy}", "`cluster.pools.policy` needs either"),
    ],
)
def test_wrong_roles_and_pools_are_refused_before_an_evaluation_as_before_a_training(
    tmp_path: Path, pools: str, roles: str, words: str
):
    with pytest.raises(ConfigError, match=words):
        load(config_with(tmp_path, pools, roles))
