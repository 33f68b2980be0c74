"""An exported checkpoint is identical to the actor's own export; `test_two_ranks` has one of two ranks."""

import os
import stat
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.errors import CheckpointError
from agentrl.training.actor import Actor
from agentrl.training.export import export_checkpoint
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import plan_update
from tests.object_store import object_store
from tests.training.training_cases import FAMILIES, alone, make_policy, step_groups

LORA = LoraSection(rank=4, alpha=8)


def config_of(model: ModelSection, **actor: Any) -> RunConfig:
    settings: dict[str, Any] = {"learning_rate": 0.02, "warmup_steps": 0}
    return RunConfig(
        model=model,
        actor=ActorSection(**settings | actor),
        rollout=RolloutSection(max_response_tokens=64),
    )


@pytest.fixture
def parallel() -> Iterator[Parallel]:
    """Process group, which a test may leave early."""
    group = Parallel(alone())
    yield group
    if torch.distributed.is_initialized():
        group.close()


def record(config: RunConfig, parallel: Parallel, url: str, export: Path) -> None:
    """Train an update, start a checkpoint, export, and train on; then leave the group."""
    actor = Actor(config, "actor")
    actor.setup(parallel)
    for step in (1, 2):
        [(shard, refs)] = plan_update(step_groups(), step=step, num_ranks=1, num_mini_batches=1)
        actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs() for _ in refs])
        if step == 1:
            actor.save(url)
            actor.export(str(export))
    while not actor.saved():
        time.sleep(0.02)
    actor.close()
    parallel.close()


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("family", "dtype"), [("qwen3", "float32"), ("qwen2", "bfloat16"), ("llama", "bfloat16")])
def test_every_file_equals_the_actors(
    parallel: Parallel, tmp_path: Path, family: str, dtype: Literal["float32", "bfloat16"]
):
    config = config_of(ModelSection(path=str(make_policy(tmp_path / "policy", FAMILIES[family])), dtype=dtype))
    record(config, parallel, f"{tmp_path}/checkpoint", tmp_path / "actors")
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        export_checkpoint(f"{tmp_path}/checkpoint", config, f"{tmp_path}/ours")
    assert files(tmp_path / "ours") == files(tmp_path / "actors")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("policy", "ours"))
    assert before.keys() == after.keys(), "tied weights come once"
    assert all(not torch.equal(before[name], after[name].float()) for name in after)


def test_factors_are_merged_as_in_the_actor_and_also_written_separately(
    parallel: Parallel, policy: ModelSection, tmp_path: Path
):
    config = config_of(policy.model_copy(update={"dtype": "bfloat16"}), lora=LORA)
    record(config, parallel, f"{tmp_path}/checkpoint", tmp_path / "actors")
    export_checkpoint(f"{tmp_path}/checkpoint", config, f"{tmp_path}/ours")
    ours = files(tmp_path / "ours")
    assert ours == files(tmp_path / "actors")
    assert "adapter/adapter_model.safetensors" in ours
    before, after = (load_file(folder / "model.safetensors") for folder in (Path(policy.path), tmp_path / "ours"))
    assert not torch.equal(
        before["model.layers.0.mlp.up_proj.weight"].bfloat16(), after["model.layers.0.mlp.up_proj.weight"]
    )


@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_exported_files_respect_the_umask(parallel: Parallel, tmp_path: Path, umask: int):
    """safetensors writes 0600, with which a server of another account could not load the policy."""
    config = config_of(ModelSection(path=str(make_policy(tmp_path / "policy"))), lora=LORA)
    for file in (tmp_path / "policy").iterdir():
        file.chmod(0o600)
    before = os.umask(umask)
    try:
        record(config, parallel, f"{tmp_path}/checkpoint", tmp_path / "actors")
        export_checkpoint(f"{tmp_path}/checkpoint", config, f"{tmp_path}/ours")
    finally:
        os.umask(before)
    for name in ("actors", "ours"):
        modes = {file: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / name).rglob("*") if file.is_file()}
        assert {file.suffix for file in modes} >= {".safetensors", ".json"}
        assert set(modes.values()) == {0o666 & ~umask}, modes


def test_a_checkpoint_in_an_object_store_is_exported(parallel: Parallel, policy: ModelSection, tmp_path: Path):
    config = config_of(policy)
    with object_store() as bucket:
        record(config, parallel, f"{bucket}/run/step_000001/actor", tmp_path / "actors")
        export_checkpoint(f"{bucket}/run/step_000001/actor", config, f"{tmp_path}/ours")
    assert files(tmp_path / "ours") == files(tmp_path / "actors")


def test_a_checkpoint_of_another_model_is_refused(parallel: Parallel, policy: ModelSection, tmp_path: Path):
    record(config_of(policy), parallel, f"{tmp_path}/checkpoint", tmp_path / "actors")
    other = ModelSection(path=str(make_policy(tmp_path / "other", FAMILIES["llama"])))
    for config in (config_of(other), config_of(policy, lora=LORA)):
        with pytest.raises(CheckpointError, match="checkpoint: cannot be read: "):
            export_checkpoint(f"{tmp_path}/checkpoint", config, f"{tmp_path}/ours")
    assert not (tmp_path / "ours").exists()
