"""Frozen weights are kept in the type of the computation: half the memory, and identical results."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import AutoModelForCausalLM

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import ActorSection, ModelSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.reference import Reference
from agentrl.training.update.update_plan import plan_update
from tests.training.training_cases import alone, step_groups

TRAJECTORIES = [trajectory.ref for group in step_groups() for trajectory in group.trajectories]


@pytest.fixture(scope="module")
def parallel() -> Iterator[Parallel]:
    group = Parallel(alone())
    yield group
    group.close()


@pytest.fixture
def half(policy: ModelSection) -> ModelSection:
    return policy.model_copy(update={"dtype": "bfloat16"})


def start(role: Any, model: ModelSection, parallel: Parallel, **actor: Any) -> Any:
    settings: dict[str, Any] = {"learning_rate": 0.02, "warmup_steps": 0}
    component = role(RunConfig(model=model, actor=ActorSection(**settings | actor)), "role")
    component.setup(parallel)
    return component


def update(actor: Actor) -> None:
    [(shard, refs)] = plan_update(step_groups(), step=1, num_ranks=1, num_mini_batches=1)
    actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))


def types(model: nn.Module) -> dict[torch.dtype, set[str]]:
    """Return the last part of the names of all weights, by their type."""
    names: dict[torch.dtype, set[str]] = {}
    for name, weight in model.named_parameters():
        names.setdefault(weight.dtype, set()).add(name.split(".")[-2])
    return names


def assert_equal(actual: list[NDArray[np.float32]], expected: list[NDArray[np.float32]]) -> None:
    for row, other in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(row, other)


def test_a_bfloat16_reference_has_the_logprobs_of_the_actor(half: ModelSection, parallel: Parallel):
    actor, reference = start(Actor, half, parallel), start(Reference, half, parallel)
    assert types(actor._model).keys() == {torch.float32}
    assert types(reference._model).keys() == {torch.bfloat16}
    assert {buffer.dtype for buffer in reference._model.buffers()} == {torch.float32}, "positions are not rounded"
    assert_equal(reference.logprobs(TRAJECTORIES), actor.logprobs(TRAJECTORIES))
    actor.close()


def test_a_bfloat16_reference_reads_the_float32_weights_of_a_checkpoint(
    half: ModelSection, parallel: Parallel, tmp_path: Path
):
    actor, reference = start(Actor, half, parallel), start(Reference, half, parallel)
    before = reference.logprobs(TRAJECTORIES)
    update(actor)
    actor.save(str(tmp_path))
    while not actor.saved():
        time.sleep(0.02)
    reference.load(str(tmp_path))
    after = reference.logprobs(TRAJECTORIES)
    assert any((row != other).any() for row, other in zip(after, before, strict=True))
    assert_equal(after, actor.logprobs(TRAJECTORIES))
    assert types(reference._model).keys() == {torch.bfloat16}
    actor.close()


def test_a_float32_reference_is_not_rounded(policy: ModelSection, parallel: Parallel):
    assert types(start(Reference, policy, parallel)._model).keys() == {torch.float32}


@pytest.mark.parametrize("settings", [{}, {"cpu_offload": True}, {"activation_checkpointing": True}], ids=str)
def test_with_lora_only_the_factors_are_float32_and_the_export_keeps_the_precision_of_the_files(
    settings: dict[str, Any], half: ModelSection, parallel: Parallel, tmp_path: Path
):
    actor = start(Actor, half, parallel, lora=LoraSection(rank=4, alpha=8), **settings)
    assert types(actor._model)[torch.float32] == {"default"}, "PEFT's name of its factors"
    assert_equal(actor.reference_logprobs(TRAJECTORIES), start(Reference, half, parallel).logprobs(TRAJECTORIES))
    update(actor)
    actor.export(str(tmp_path))
    factors = {name: factor.full_tensor().float() for name, factor in actor._adapters.factors()}
    exported = dict(AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16).named_parameters())
    start_weights = dict(AutoModelForCausalLM.from_pretrained(half.path, dtype=torch.float32).named_parameters())
    assert exported.keys() == start_weights.keys()
    for name, weight in start_weights.items():
        module = name.removesuffix(".weight")
        if f"{module}.lora_A" in factors:
            product = factors[f"{module}.lora_B"] @ factors[f"{module}.lora_A"]
            assert product.any()
            torch.testing.assert_close(exported[name].float(), weight + 2 * product, rtol=2**-8, atol=1e-6)
        else:
            assert torch.equal(exported[name], weight.bfloat16()), name
    actor.close()
