"""Processes of `test_hybrid_sharding`; a run of one rank is the reference."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from agentrl.config.schema.algorithm import LoraSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, local_part, named_weights
from agentrl.training.trained_model import ADAM_BETAS
from agentrl.training.update.update_plan import plan_update
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.training_cases import step_groups
from tests.training.two_ranks import context_at

CASES: dict[str, dict[str, Any]] = {
    "hybrid": {"shard_size": 2},
    "offload": {"cpu_offload": True},
    "lora": {"shard_size": 2, "lora": LoraSection(rank=4)},
}


@dataclass
class UpdateResult:
    grad_norm: float
    gradients: dict[str, Tensor]
    """Whole gradient of each weight or factor."""
    weights: dict[str, Tensor]
    """Whole weights after the update."""
    published: dict[str, Tensor] | None
    """The same, read from shared memory; None on every rank but the first."""


def update_once(parallel: Parallel, policy: str, case: str) -> UpdateResult:
    """Run an update."""
    settings = dict(CASES[case])
    if parallel.world_size == 1:
        settings |= {"shard_size": 0, "cpu_offload": False}
    config = RunConfig(
        model=ModelSection(path=policy),
        actor=ActorSection(warmup_steps=0, max_grad_norm=1e9, **settings),
        rollout=RolloutSection(max_response_tokens=64),
    )
    actor = Actor(config, "actor")
    actor.setup(parallel)
    fill_factors(actor)
    shares = plan_update(step_groups(), step=1, num_ranks=parallel.world_size, num_mini_batches=1)
    shard, refs = shares[parallel.rank]
    metrics = actor.update(shard, [trajectory.ref for trajectory in refs], [TokenInputs()] * len(refs))
    trained = {name: weight for name, weight in actor._model.named_parameters() if weight.requires_grad}
    # After one update AdamW's mean gradient is this share of the only gradient.
    share = 1 - ADAM_BETAS[0]
    gradients = {name: whole(actor._optimiser.state[weight]["exp_avg"]) / share for name, weight in trained.items()}
    source = actor.publish_weights()
    published = None if source is None else {name: tensor.clone() for name, tensor in read_tensors(source)}
    sent = named_weights(actor._model) if actor._adapters is None else actor._adapters.factors()
    weights = {name: whole(weight.detach()) for name, weight in sent}
    actor.close()
    return UpdateResult(grad_norm=metrics["actor/grad_norm"], gradients=gradients, weights=weights, published=published)


@torch.no_grad()
def fill_factors(actor: Actor) -> None:
    """Fill LoRA's factors, because with products of 0 only one factor of each has a gradient."""
    draws = torch.Generator().manual_seed(1)
    for _, factor in [] if actor._adapters is None else actor._adapters.factors():
        local, index = local_part(factor)
        local.copy_(0.1 * torch.randn(factor.shape, generator=draws)[index])


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def run_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Run the update of every case, and write the results to `folder`."""
    parallel = Parallel(context_at(port, rank, world_size))
    results = {case: update_once(parallel, policy, case) for case in CASES}
    torch.save(results, Path(folder) / f"rank{rank}.pt")
    parallel.close()
