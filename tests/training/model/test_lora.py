"""LoRA's factors: only they are trained, exports and engines merge them, and the reference omits them."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader
from transformers import AutoModelForCausalLM

from agentrl.config.schema.algorithm import AlgorithmSection, LoraSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.engine.embedded.model import LanguageModel
from agentrl.errors import ConfigError
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.reference import Reference
from agentrl.training.update.update_plan import plan_update
from agentrl.weight_sync.base import WeightSource
from tests.training.training_cases import alone, step_groups

TRAJECTORIES = [trajectory.ref for group in step_groups() for trajectory in group.trajectories]
STEP = 1


def config_of(policy: ModelSection, **actor: Any) -> RunConfig:
    settings: dict[str, Any] = {"lora": LoraSection(rank=4, alpha=8), "learning_rate": 0.02, "warmup_steps": 0}
    return RunConfig(
        model=policy,
        actor=ActorSection(**settings | actor),
        algorithm=AlgorithmSection(kl_coefficient=0.1),
        rollout=RolloutSection(max_response_tokens=64),
    )


def start_actor(config: RunConfig, parallel: Parallel) -> Actor:
    actor = Actor(config, "actor")
    actor.setup(parallel)
    return actor


def update(actor: Actor, step: int = STEP) -> dict[str, float]:
    [(shard, refs)] = plan_update(step_groups(), step=step, num_ranks=1, num_mini_batches=1)
    trajectories = [trajectory.ref for trajectory in refs]
    inputs = [TokenInputs(ref_logprobs=logprobs) for logprobs in actor.reference_logprobs(trajectories)]
    return actor.update(shard, trajectories, inputs)


@pytest.fixture(scope="module")
def parallel() -> Iterator[Parallel]:
    group = Parallel(alone())
    yield group
    group.close()


@dataclass
class Trained:
    """An actor after one update, with its published and exported weights."""

    actor: Actor
    source: WeightSource
    export: Path


@pytest.fixture(scope="module")
def trained(policy: ModelSection, parallel: Parallel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    actor = start_actor(config_of(policy), parallel)
    update(actor)
    folder = tmp_path_factory.mktemp("export")
    actor.export(str(folder))
    source = actor.publish_weights()
    assert source is not None
    yield Trained(actor=actor, source=source, export=folder)
    actor.close()


def reference_logprobs(path: str, policy: ModelSection, parallel: Parallel) -> list[Any]:
    reference = Reference(config_of(ModelSection(path=path)), "ref")
    reference.setup(parallel)
    return reference.logprobs(TRAJECTORIES)


def assert_close(actual: list[Any], expected: list[Any], tolerance: float) -> None:
    for row, other in zip(actual, expected, strict=True):
        np.testing.assert_allclose(row, other, atol=tolerance, rtol=0)


def test_the_merged_export_has_the_same_logprobs(trained: Trained, policy: ModelSection, parallel: Parallel):
    assert_close(
        trained.actor.logprobs(TRAJECTORIES), reference_logprobs(str(trained.export), policy, parallel), tolerance=2e-5
    )


def test_without_its_factors_the_actor_is_the_base_model(trained: Trained, policy: ModelSection, parallel: Parallel):
    base = reference_logprobs(policy.path, policy, parallel)
    assert_close(trained.actor.reference_logprobs(TRAJECTORIES), base, tolerance=0)
    moved = [abs(row - other).max() for row, other in zip(trained.actor.logprobs(TRAJECTORIES), base, strict=True)]
    assert min(moved) > 1e-3


def test_only_adapted_weights_change(trained: Trained, policy: ModelSection):
    merged = dict(AutoModelForCausalLM.from_pretrained(trained.export).named_parameters())
    for name, weight in AutoModelForCausalLM.from_pretrained(policy.path).named_parameters():
        assert torch.equal(merged[name], weight) != name.endswith("proj.weight"), name


def test_peft_loads_the_exported_factors(trained: Trained, policy: ModelSection):
    ids = torch.tensor([TRAJECTORIES[0].token_ids])
    base: Any = AutoModelForCausalLM.from_pretrained(policy.path)
    merged: Any = AutoModelForCausalLM.from_pretrained(trained.export)
    with torch.no_grad():
        adapted = PeftModel.from_pretrained(base, str(trained.export / "adapter"))(ids).logits
        torch.testing.assert_close(adapted, merged(ids).logits, atol=2e-5, rtol=0)


def test_an_engine_gets_only_the_factors_and_merges_them(trained: Trained, policy: ModelSection):
    model = LanguageModel(policy, num_rows=1, max_tokens=1024)
    model.weights.load(trained.source)
    model.weights.load(trained.source)  # factors must not accumulate
    whole_bytes = sum(weight.nbytes for weight in model._model.parameters())
    assert all(spec.name.endswith((".lora_A", ".lora_B")) for spec in trained.source.tensors)
    assert trained.source.size_bytes < whole_bytes / 2
    for name, weight in AutoModelForCausalLM.from_pretrained(trained.export).named_parameters():
        torch.testing.assert_close(model._model.get_parameter(name), weight, atol=1e-7, rtol=0)


def test_a_resumed_actor_makes_an_identical_update(policy: ModelSection, parallel: Parallel, tmp_path: Path):
    first, second = (start_actor(config_of(policy), parallel) for _ in range(2))
    update(first)
    first.save(str(tmp_path))
    update(first, step=2)
    while not first.saved():
        time.sleep(0.02)
    weights = [
        name for name in FsspecReader(str(tmp_path)).read_metadata().state_dict_metadata if name.startswith("model.")
    ]
    assert weights
    assert all(".lora_" in name for name in weights)
    second.load(str(tmp_path))
    update(second, step=2)
    assert_close(second.logprobs(TRAJECTORIES), first.logprobs(TRAJECTORIES), tolerance=0)
    first.close()
    second.close()


def test_shared_prefixes_and_recomputed_activations_do_not_change_the_gradient(
    policy: ModelSection, parallel: Parallel
):
    norms = []
    for share_prefixes, recompute in ((False, False), (True, False), (True, True)):
        actor = start_actor(config_of(policy, activation_checkpointing=recompute), parallel)
        actor._packing = replace(actor._packing, share_prefixes=share_prefixes)
        norms.append(update(actor)["actor/grad_norm"])
        actor.close()
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)
    assert norms[2] == norms[1]


@pytest.mark.parametrize("target", ["embed_tokens", "lm_head"])
def test_target_modules_that_cannot_be_adapted_are_named(policy: ModelSection, parallel: Parallel, target: str):
    config = config_of(policy, lora=LoraSection(rank=2, target_modules=[target]))
    with pytest.raises(ConfigError, match=target):
        start_actor(config, parallel)


def test_only_target_modules_are_adapted(policy: ModelSection, parallel: Parallel):
    actor = start_actor(config_of(policy, lora=LoraSection(rank=2, target_modules=["q_proj", "v_proj"])), parallel)
    source = actor.publish_weights()
    assert source is not None
    assert {spec.name.split(".")[-2] for spec in source.tensors} == {"q_proj", "v_proj"}
    actor.close()
