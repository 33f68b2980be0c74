"""Compiled layers and Liger's kernels keep the results."""

import random
from functools import partial
from typing import cast

import pytest
import torch
from torch import nn
from torch._dynamo.utils import is_frozen_dataclass
from transformers import Qwen3ForCausalLM
from transformers.integrations import liger

from agentrl.config.schema.run import ActorSection, ModelSection
from agentrl.errors import ConfigError
from agentrl.training.model.decoder import compile_layers, load_model, recompute_activations
from agentrl.training.model.scalar_model import value_model
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, pack_trajectories
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from tests.training.training_cases import alone, make_group, step_groups


class Unsharded:
    """A rank with a GPU, without sharding."""

    device = torch.device("cuda")

    def shard(self, *args: object, **kwargs: object) -> None: ...


def row_of(num_groups: int) -> MicroBatch:
    trajectories = [trajectory.ref for group in step_groups()[:num_groups] for trajectory in group.trajectories]
    [batch] = pack_trajectories(trajectories, [1.0] * len(trajectories), packing=Packing(max_tokens=10_000))
    return batch


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_and_recomputed_layers_have_the_same_gradients(policy: ModelSection):
    plain, compiled = load_model(policy), load_model(policy)
    # Everything but code generation, which would take minutes.
    compile_layers(compiled, backend="aot_eager")
    recompute_activations(compiled)
    for batch in (row_of(2), row_of(3)):
        for model in (plain, compiled):
            score_tokens(model, batch.tokens, temperature=1.0).logprobs_N.sum().backward()
    for (name, weight), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        assert (weight.grad - other.grad).norm() <= 1e-5 * weight.grad.norm(), name


def test_compiled_layers_serve_every_row_layout_with_the_same_graphs(policy: ModelSection):
    num_graphs = 0

    def count(graph: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> torch.fx.GraphModule:
        nonlocal num_graphs
        num_graphs += 1
        return graph

    model = load_model(policy)
    torch._dynamo.reset()
    compile_layers(model, backend=count)
    draws = random.Random(0)
    counts, layouts = [], []
    for number in range(4):
        trajectories = [trajectory.ref for trajectory in make_group(draws, f"p{number}", 3 + number % 5).trajectories]
        packing = Packing(max_tokens=10_000, share_prefixes=number % 2 == 0)
        [batch] = pack_trajectories(trajectories, [1.0] * len(trajectories), packing=packing)
        score_tokens(model, batch.tokens, temperature=1.0).logprobs_N.sum().backward()
        counts.append(num_graphs)
        layouts.append(batch.tokens.layout)
    assert counts == [4] * 4, "before and after attention, for the first layer and for the others"
    assert len({layout.lengths for layout in layouts}) == 4
    assert not any(map(is_frozen_dataclass, layouts)), "torch before 2.13 guards on every field of a frozen dataclass"


def test_a_critics_backbone_gets_the_kernels(policy: ModelSection, monkeypatch: pytest.MonkeyPatch):
    modules: list[nn.Module] = []
    monkeypatch.setattr(liger, "apply_liger_kernel", lambda model, kernels: modules.append(model))
    critic = value_model(load_model(policy))
    shard_with_liger = partial(shard_model, files=None, actor=ActorSection(liger=True), dtype=torch.float32)
    for model in (load_model(policy), critic):
        shard_with_liger(model, parallel=cast(Parallel, Unsharded()))
    assert isinstance(modules[0], Qwen3ForCausalLM)
    assert modules[1] is critic.backbone


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_gpu_kernels_are_refused_without_a_gpu(policy: ModelSection):
    parallel, opened = Parallel(alone()), open_model(policy)
    try:
        with pytest.raises(ConfigError, match=r"`actor\.liger` is set"):
            shard_model(opened.model, opened.files, parallel, ActorSection(liger=True), dtype=torch.float32)
    finally:
        parallel.close()
