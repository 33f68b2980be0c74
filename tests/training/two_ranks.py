"""Processes of `test_two_ranks`; a run of one rank is the reference."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from agentrl.config.schema.run import (
    ActorSection,
    AlgorithmSection,
    ModelSection,
    RolloutSection,
    RunConfig,
    RunSection,
)
from agentrl.training import weight_publisher
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel, ParallelContext, Store
from agentrl.training.reference import Reference
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Group
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.transports.shared_memory import read_tensors
from tests.training.training_cases import make_group

ACTOR = ActorSection(
    learning_rate=0.01,
    warmup_steps=0,
    max_grad_norm=0.5,
    max_tokens_per_micro_batch=64,
    mini_batches_per_step=2,
)


@dataclass
class StepResult:
    metrics: dict[str, float]
    weights: dict[str, Tensor] | None
    """None on every rank but the first."""


def step_groups(step: int) -> list[Group]:
    """Return one mini-batch in step 1, and in step 2 a second one of one trajectory, so that one of two ranks has none."""
    draws = random.Random(step)
    return [make_group(draws, "p0", 7)] if step == 1 else [make_group(draws, "p0", 6), make_group(draws, "p1", 1)]


@dataclass
class Rank:
    """An actor and a reference in one process."""

    parallel: Parallel
    actor: Actor
    reference: Reference

    def close(self) -> None:
        self.actor.close()
        self.parallel.close()


def context_at(port: int, rank: int, world_size: int, *, sequence_parallel_size: int = 1) -> ParallelContext:
    """Return the context of a rank whose parent process has the store."""
    return ParallelContext(
        rank=rank,
        world_size=world_size,
        master_addr="127.0.0.1",
        master_port=port,
        store=Store("127.0.0.1", port, is_master=False),
        sequence_parallel_size=sequence_parallel_size,
        num_threads=1,
    )


def start_rank(context: ParallelContext, policy: str) -> Rank:
    config = RunConfig(
        run=RunSection(seed=context.rank),
        model=ModelSection(path=policy),
        actor=ACTOR,
        algorithm=AlgorithmSection(kl_coefficient=0.2, aggregation="trajectory_mean"),
        rollout=RolloutSection(max_response_tokens=64),
    )
    rank = Rank(Parallel(context), Actor(config, "actor"), Reference(config, "ref"))
    rank.actor.setup(rank.parallel)
    rank.reference.setup(rank.parallel)
    return rank


def make_step(rank: Rank, step: int) -> StepResult:
    shares = plan_update(
        step_groups(step),
        step=step,
        num_ranks=rank.parallel.world_size,
        num_mini_batches=ACTOR.mini_batches_per_step,
    )
    shard, refs = shares[rank.parallel.rank]
    trajectories = [trajectory.ref for trajectory in refs]
    inputs = [TokenInputs(ref_logprobs=logprobs) for logprobs in rank.reference.logprobs(trajectories)]
    metrics = rank.actor.update(shard, trajectories, inputs)
    source = rank.actor.publish_weights()
    weights = None if source is None else {name: tensor.clone() for name, tensor in read_tensors(source)}
    return StepResult(metrics=metrics, weights=weights)


def offer_stream(rank: Rank) -> WeightSource:
    """Return, on every rank, the source of a broadcast to one engine."""
    offered = [rank.actor.publish_weights(Transport.BROADCAST, ["engine 0/0"])]
    torch.distributed.broadcast_object_list(offered, src=0)
    [source] = offered
    assert source is not None
    return source


def send_to_nobody(rank: Rank) -> str | None:
    """Send a stream to an engine that never arrives; return the actor's report."""
    sender = rank.actor._weights._streams[Transport.BROADCAST]
    timeout_s, sender._timeout_s = sender._timeout_s, 0.5
    problem = rank.actor.send_weights(offer_stream(rank))
    sender._timeout_s = timeout_s
    return problem


def other_ways(rank: Rank) -> dict[str, dict[str, Tensor]]:
    """Return the weights published by gathering and by broadcast, as if only the first rank reached the shared memory."""
    rank.actor._weights._shared._all_can_write = False
    gathered = rank.actor.publish_weights()
    source = offer_stream(rank)
    ways: dict[str, dict[str, Tensor]] = {}
    with ThreadPoolExecutor() as threads:
        taken = threads.submit(taken_by_an_engine, source) if rank.parallel.rank == 0 else None
        assert rank.actor.send_weights(source) is None
        if taken is not None:
            ways["broadcast"] = taken.result()
    if gathered is not None:
        ways["gathered"] = {name: tensor.clone() for name, tensor in read_tensors(gathered)}
    return ways


def published_again(rank: Rank) -> dict[str, Tensor] | None:
    """Return the weights of a second publisher, with all ranks but the first late."""
    second = weight_publisher.WeightPublishing(rank.actor._model, rank.parallel, dtype=torch.float32, checked=False)
    local = weight_publisher._local

    def late(tensor: Tensor) -> Tensor:
        time.sleep(0.05)
        return local(tensor)

    with mock.patch.object(weight_publisher, "_local", local if rank.parallel.rank == 0 else late):
        source = second.publish(Transport.SHARED_MEMORY)
    weights = None if source is None else {name: tensor.clone() for name, tensor in read_tensors(source)}
    second.close()
    return weights


def taken_by_an_engine(source: WeightSource) -> dict[str, Tensor]:
    tensors = WeightReceiver(torch.device("cpu")).tensors(replace(source, receiver="engine 0"))
    return {name: tensor.clone() for name, tensor in tensors}


def run_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Train two steps with a checkpoint between them, export, and write the results to `folder`."""
    started = start_rank(context_at(port, rank, world_size), policy)
    first = make_step(started, 1)
    started.actor.save(f"{folder}/checkpoint")
    second = make_step(started, 2)
    torch.save(send_to_nobody(started), Path(folder) / f"nobody{rank}.pt")
    torch.save(other_ways(started), Path(folder) / f"other_ways{rank}.pt")
    torch.save(published_again(started), Path(folder) / f"published_again{rank}.pt")
    started.actor.export(f"{folder}/export")
    torch.save([first, second], Path(folder) / f"rank{rank}.pt")
    started.close()


def resume_rank(rank: int, world_size: int, port: int, policy: str, folder: str) -> None:
    """Resume from the checkpoint in `folder`, run the second step, and write the result there."""
    resumed = start_rank(context_at(port, rank, world_size), policy)
    resumed.actor.load(f"{folder}/checkpoint")
    torch.save(make_step(resumed, 2), Path(folder) / f"resumed{rank}.pt")
    resumed.close()
