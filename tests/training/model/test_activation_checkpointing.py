"""Recomputed activations change only the memory."""

import random
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config

from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.model.decoder import load_model, recompute_activations
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, pack_trajectories
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.update_plan import plan_update
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.allocations import peak_allocated_bytes
from tests.training.training_cases import VOCABULARY, alone, make_policy, make_trajectory, step_groups


def backward(model: torch.nn.Module, batch: MicroBatch) -> None:
    score_tokens(model, batch.tokens, temperature=1.0).logprobs_N.sum().backward()


@pytest.mark.parametrize("share_prefixes", [True, False])
def test_recomputed_activations_give_identical_gradients(policy: ModelSection, share_prefixes: bool):
    trajectories = [trajectory.ref for group in step_groups() for trajectory in group.trajectories]
    packing = Packing(max_tokens=10_000, share_prefixes=share_prefixes)
    [batch] = pack_trajectories(trajectories, [1.0] * len(trajectories), packing=packing)
    assert bool(batch.tokens.layout.prefixes) == share_prefixes
    kept, recomputed = load_model(policy), load_model(policy)
    recompute_activations(recomputed)
    for model in (kept, recomputed):
        backward(model, batch)
    for (name, weight), other in zip(kept.named_parameters(), recomputed.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        assert torch.equal(weight.grad, other.grad), name


def test_recomputed_activations_take_less_memory(tmp_path: Path):
    deep = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=128,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
    )
    folder = make_policy(tmp_path, deep)
    [batch] = pack_trajectories(
        [make_trajectory(random.Random(0), 0, length=1500)], [1.0], packing=Packing(max_tokens=2000)
    )
    model = load_model(ModelSection(path=str(folder)))
    backward(model, batch)  # allocates the gradients
    kept_bytes = peak_allocated_bytes(lambda: backward(model, batch))
    recompute_activations(model)
    recomputed_bytes = peak_allocated_bytes(lambda: backward(model, batch))
    # Eight layers' activations, or their eight inputs and one layer's activations.
    assert recomputed_bytes < kept_bytes / 3


def test_recomputed_activations_give_an_identical_update(policy: ModelSection):
    parallel, results = Parallel(alone()), []
    try:
        for activation_checkpointing in (True, False):
            settings = ActorSection(activation_checkpointing=activation_checkpointing)
            config = RunConfig(model=policy, actor=settings, rollout=RolloutSection(max_response_tokens=64))
            actor = Actor(config, "actor")
            actor.setup(parallel)
            [(shard, refs)] = plan_update(step_groups(), step=1, num_ranks=1, num_mini_batches=1)
            metrics = actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))
            results.append((metrics["actor/grad_norm"], weights_of(actor)))
            actor.close()
    finally:
        parallel.close()
    (norm, weights), (other_norm, other_weights) = results
    assert norm == other_norm
    assert all(torch.equal(tensor, other_weights[name]) for name, tensor in weights.items())


def weights_of(actor: Actor) -> dict[str, Tensor]:
    source = actor.publish_weights()
    assert source is not None
    return {name: tensor.clone() for name, tensor in read_tensors(source)}
