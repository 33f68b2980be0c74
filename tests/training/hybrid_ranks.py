"""What the four processes of `test_hybrid_sharding` run. With one rank it is the reference for itself."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from training_cases import step_groups
from two_ranks import context_at

from agentrl.config.algorithm_schema import LoraSection
from agentrl.config.schema import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.parallel import Parallel
from agentrl.training.role import RoleContext
from agentrl.training.sharding import plan_update
from agentrl.training.token_inputs import TokenInputs
from agentrl.weight_sync.shared_memory import read_tensors

CASES: dict[str, dict[str, Any]] = {
    "hybrid": {"shard_size": 2},
    "offload": {"cpu_offload": True},
    "lora": {"shard_size": 2, "lora": LoraSection(rank=4)},
}


def update_once(parallel: Parallel, policy: str, case: str) -> tuple[float, dict[str, Tensor] | None]:
    """Make an update; return the norm of its gradient, and on the first rank the weights, or factors, behind it."""
    settings = dict(CASES[case])
    if parallel.world_size == 1:
        settings |= {"shard_size": 0, "cpu_offload": False}
    config = RunConfig(
        model=ModelSection(path=policy),
        actor=ActorSection(num_threads_per_worker=1, learning_rate=0.01, warmup_steps=0, **settings),
        rollout=RolloutSection(max_response_tokens=64),
    )
    actor = Actor(config, "actor")
    actor.setup(RoleContext(parallel=parallel))
    shares = plan_update(step_groups(), step=1, num_ranks=parallel.world_size, num_mini_batches=1)
    shard, refs = shares[parallel.rank]
    metrics = actor.update(shard, [made.ref for made in refs], [TokenInputs()] * len(refs))
    source = actor.publish_weights()
    weights = None if source is None else {name: tensor.clone() for name, tensor in read_tensors(source)}
    actor.close()
    return metrics["actor/grad_norm"], weights


def run_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Make the update of every case, and leave what came of it in `folder`."""
    parallel = Parallel(context_at(port, rank, world_size))
    found = {case: update_once(parallel, policy, case) for case in CASES}
    torch.save(found, Path(folder) / f"rank{rank}.pt")
    parallel.close()
