"""What the two processes of `test_two_ranks` run. With one rank it is the reference for itself."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from training_cases import make_group

from agentrl.config.schema import ActorSection, AlgorithmSection, ModelSection
from agentrl.training.actor import Actor
from agentrl.training.parallel import ParallelContext
from agentrl.training.sharding import plan_update
from agentrl.types import Group
from agentrl.weight_sync.shared_memory import read_tensors

ACTOR = ActorSection(
    learning_rate=0.01,
    warmup_steps=0,
    max_grad_norm=0.5,
    max_tokens_per_micro_batch=64,
    num_threads_per_worker=1,
    mini_batches_per_step=2,
)


@dataclass
class StepResult:
    metrics: dict[str, float]
    weights: dict[str, Tensor] | None
    """None on every rank but the first."""


def step_groups(step: int) -> list[Group]:
    """Step 1 has one mini-batch; step 2 a second one with a single trajectory, so that one of two ranks has none."""
    draws = random.Random(step)
    return [make_group(draws, "p0", 7)] if step == 1 else [make_group(draws, "p0", 6), make_group(draws, "p1", 1)]


def start_actor(context: ParallelContext, policy: str) -> Actor:
    actor = Actor(
        ModelSection(path=policy),
        ACTOR,
        AlgorithmSection(kl_coefficient=0.2, aggregation="trajectory_mean"),
        temperature=1.0,
        max_response_tokens=64,
        seed=context.rank,
    )
    actor.setup(context)
    return actor


def make_step(actor: Actor, context: ParallelContext, step: int) -> StepResult:
    shares = plan_update(
        step_groups(step),
        step=step,
        num_ranks=context.world_size,
        num_mini_batches=ACTOR.mini_batches_per_step,
    )
    shard, refs = shares[context.rank]
    metrics = actor.update(shard, [made.ref for made in refs])
    source = actor.publish_weights()
    weights = None if source is None else {name: tensor.clone() for name, tensor in read_tensors(source)}
    return StepResult(metrics=metrics, weights=weights)


def run_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Train two steps with a checkpoint between them, export, and leave the results in `folder`."""
    context = ParallelContext(rank=rank, world_size=world_size, master_addr="127.0.0.1", master_port=port)
    actor = start_actor(context, policy)
    first = make_step(actor, context, 1)
    actor.save(f"{folder}/checkpoint")
    second = make_step(actor, context, 2)
    actor.export(f"{folder}/export")
    torch.save([first, second], Path(folder) / f"rank{rank}.pt")
    actor.close()
