"""Threads of the processes that compute without a GPU."""

import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from agentrl.cluster import spawn_roles
from agentrl.cluster.placement.threads import threads_per_engine, threads_per_rank
from agentrl.cluster.ray.spawn import ResourcePool
from agentrl.cluster.workers import engine_worker, model_worker
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.engine.embedded import engine as embedded


def config(*words: str) -> RunConfig:
    return load_run_config("configs/demo.yaml", words).config


@pytest.mark.parametrize(
    ("words", "rank", "engine"),
    [
        ([], 16, 16),  # they take turns
        (["rollout.num_engines=4", "actor.num_workers=2"], 8, 4),
        (["rollout.max_staleness=1"], 8, 8),
        (["rollout.max_staleness=1", "rollout.num_engines=2"], 8, 4),
        (["rollout.num_engines=32", "actor.num_workers=32", "rollout.prompts_per_step=32"], 1, 1),
    ],
)
def test_processes_that_compute_at_once_share_the_cores(words: list[str], rank: int, engine: int):
    assert threads_per_rank(config(*words), 16) == rank
    assert threads_per_engine(config(*words), 16) == engine


def test_an_odd_core_goes_to_the_engine():
    assert threads_per_rank(config("rollout.max_staleness=1"), 3) == 1
    assert threads_per_engine(config("rollout.max_staleness=1"), 3) == 2


@pytest.mark.parametrize(
    ("pool", "engine"),
    [("processes_per_node: [2, 2]", 32), ("num_processes: 4", 64), ("processes_per_node: [1, 1]", 64)],
)
def test_engines_of_a_cluster_share_the_cores_of_their_own_node(
    pool: str, engine: int, monkeypatch: pytest.MonkeyPatch
):
    """Computed in the engine's process: the head that starts it may have fewer cores."""
    words = ["cluster.address=10.0.0.1:6379", "rollout.engine=transformers"]
    words += [f"cluster.pools={{a: {{{pool}}}, b: {{num_processes: 1}}}}", "cluster.roles={actor: b, rollout: a}"]
    shipped: list[RunConfig] = []

    def spawned(cls: type, place: ResourcePool, config: RunConfig, role: str, **_: Any) -> list[Any]:
        shipped.append(config)
        return [SimpleNamespace()]

    monkeypatch.setattr(spawn_roles, "spawn", spawned)
    monkeypatch.setattr(spawn_roles.EngineHandle, "of", lambda engine: engine)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    spawn_roles.spawn_engine(config(*words), ResourcePool(num_processes=1), 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64))
    built: list[int] = []
    monkeypatch.setattr(embedded, "TransformersEngine", lambda *_, num_threads, **__: built.append(num_threads))
    engine_worker.EngineWorker(shipped[0], "engine")
    assert built == [engine]


async def test_a_rank_counts_the_cores_of_its_own_machine(monkeypatch: pytest.MonkeyPatch):
    """Computed in the rank's process: the driver that starts it may have more cores."""
    monkeypatch.setattr(model_worker, "own_address", lambda: "127.0.0.1")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3))
    worker = model_worker.ModelWorker(config(), "")
    before = torch.get_num_threads()
    try:
        await worker.setup(0, 1, *await worker.open_store())
        assert await worker._run(torch.get_num_threads) == 3
    finally:
        torch.set_num_threads(before)
        torch.distributed.destroy_process_group()
