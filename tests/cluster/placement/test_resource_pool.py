"""Comparison of pools with a cluster; with a real Ray, reservation and release of places."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import ray

from agentrl.cluster import launch
from agentrl.cluster.launch import require_room_here
from agentrl.cluster.placement.nodes import Nodes, living_nodes
from agentrl.cluster.placement.resource_pool import Bundle, bundles_of, missing_resources, reserve
from agentrl.cluster.ray.spawn import spawn
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.spawn_roles import Places, processes_of
from agentrl.config.schema.cluster import ClusterSection, ExtraRoleSection, PoolSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.errors import ConfigError, InsufficientResourcesError
from tests.cluster.workers import PlainWorker

MODEL = ModelSection(path="")

NODE = {"CPU": 8.0, "GPU": 4.0}


def missing(section: PoolSection, *total: Bundle) -> str:
    needs = {"cluster.pools.train": bundles_of(section)}
    return missing_resources(ClusterSection(pools={"train": section}), needs, total=total) or ""


def test_bundles_share_a_node_unless_each_needs_one_of_its_own():
    apart = PoolSection(processes_per_node=[1, 1], num_cpus=4)
    assert missing(PoolSection(num_processes=2, num_cpus=4), NODE) == ""
    assert missing(apart, NODE, NODE) == ""
    assert "each on a node of its own" in missing(apart, NODE)


def test_what_is_missing_is_said_with_what_the_nodes_have():
    message = missing(PoolSection(processes_per_node=[1], num_gpus=8), NODE, NODE)
    assert "`cluster.pools.train` needs 1 x (CPU 1, GPU 8)" in message
    assert "The nodes have: 1 x (CPU 8, GPU 4); 1 x (CPU 8, GPU 4)" in message


def test_a_large_bundle_is_not_kept_out_by_small_ones():
    assert missing(PoolSection(processes_per_node=[1, 8]), {"CPU": 8.0}, {"CPU": 2.0}) == ""


def test_pools_that_fit_alone_and_not_together_are_refused_with_their_keys():
    needs = {name: [{"CPU": 5.0}] for name in ("cluster.pools.a", "cluster.pools.b")}
    assert missing_resources(ClusterSection(), needs, total=[NODE, NODE]) is None
    message = missing_resources(ClusterSection(), needs, total=[NODE]) or ""
    assert "the run takes 1 x (CPU 10) together, and the cluster has 1 x (CPU 8, GPU 4)" in message
    assert "`cluster.pools.a`: 1 x (CPU 5); `cluster.pools.b`: 1 x (CPU 5)" in message


def test_parts_of_a_gpu_that_make_a_whole_one_have_room():
    needs = {"a": [{"GPU": 1 / 3}] * 3}
    assert missing_resources(ClusterSection(), needs, total=[{"CPU": 1.0, "GPU": 1.0}]) is None


def test_a_run_takes_its_pools_its_ranks_its_engines_and_its_agent_loops():
    extra = {"painter": ExtraRoleSection(class_path="m.C", pool="a")}
    config = RunConfig(
        model=MODEL,
        cluster=ClusterSection(pools={"a": PoolSection(processes_per_node=[2], num_cpus=0)}, extra_roles=extra),
        actor=ActorSection(num_workers=2),
        rollout=RolloutSection(num_engines=1, num_workers=3, tensor_parallel_size=2),
    )
    assert processes_of(config, num_gpus=1.0) == {
        "cluster.pools.a": [{"CPU": 0.001}],
        "actor.num_workers": [{"CPU": 1.0, "GPU": 1.0}] * 2,
        "rollout.num_engines": [{"CPU": 1.0, "GPU": 2.0}],
        "rollout.num_workers": [{"CPU": 1.0}] * 3,
    }


def in_pool(section: PoolSection, **cluster: Any) -> RunConfig:
    """A run whose processes are all in one pool."""
    return RunConfig(
        model=MODEL,
        cluster=ClusterSection(pools={"a": section}, roles={"actor_rollout_ref": "a"}, **cluster),
    )


def mixed(engine: Any) -> RunConfig:
    """A run with its ranks on GPUs and its engines in a pool without."""
    pools = {"gpus": PoolSection(num_processes=1, num_gpus=1), "cpus": PoolSection(num_processes=1)}
    return RunConfig(
        model=MODEL,
        cluster=ClusterSection(pools=pools, roles={"actor": "gpus", "rollout": "cpus"}),
        rollout=RolloutSection(engine=engine),
    )


@pytest.mark.parametrize(
    ("config", "num_gpus", "words"),
    [
        (
            in_pool(PoolSection(processes_per_node=[1, 1])),
            0,
            r"`cluster.pools.a` needs .* not every one has room.* join a cluster of several nodes by `cluster.address`",
        ),
        (
            in_pool(PoolSection(num_processes=1, num_gpus=1)),
            0,
            r"takes 1 x \(CPU 2, GPU 1\).* GPU 0.*`cluster.address`",
        ),
        (in_pool(PoolSection(processes_per_node=[3], num_gpus=1)), 2, r"takes 1 x \(CPU 4, GPU 3\)"),
        (
            in_pool(PoolSection(processes_per_node=[2])),
            4,
            r"`cluster.pools.a.num_gpus` \(of `cluster.roles.actor_rollout_ref`\): 0, .* 4 GPUs\. Set it to 1, or",
        ),
        (
            mixed("transformers"),
            4,
            r"^`cluster.pools.cpus.num_gpus` \(of `cluster.roles.rollout`\): 0, so it would compute on the CPU of nodes with 4",
        ),
        (
            mixed("vllm"),
            4,
            r"^`cluster.pools.cpus.num_gpus` \(of `cluster.roles.rollout`\): 0, so it would compute on the CPU of nodes with 4",
        ),
        (
            RunConfig(model=MODEL, rollout=RolloutSection(engine="vllm")),
            1,
            r"`rollout.kv_memory_gb` is not set, and vLLM shares GPUs with the models",
        ),
        (
            RunConfig(model=MODEL, actor=ActorSection(num_workers=3)),
            2,
            r"actor.num_workers and .* need 4, and there are 2",
        ),
        (
            RunConfig(model=MODEL, cluster=ClusterSection(weight_transport="cuda_ipc")),
            0,
            r"`cluster.weight_transport` is `cuda_ipc`",
        ),
        (
            RunConfig(model=MODEL, cluster=ClusterSection(weight_transport="broadcast")),
            1,
            r"they share them; take `cuda_ipc`",
        ),
        (
            RunConfig(model=MODEL, actor=ActorSection(cpu_offload=True)),
            0,
            r"`actor.cpu_offload` is set, but this machine has no GPU",
        ),
    ],
)
def test_what_a_ray_of_the_runs_own_could_not_hold_is_refused_without_one(config: RunConfig, num_gpus: int, words: str):
    with pytest.raises(ConfigError, match=words):
        require_room_here(config, num_gpus=num_gpus)
    joining = config.model_copy(update={"cluster": config.cluster.model_copy(update={"address": "10.0.0.1:6379"})})
    require_room_here(joining, num_gpus=num_gpus)


@pytest.mark.parametrize(
    ("config", "num_gpus"),
    [
        (RunConfig(model=MODEL, actor=ActorSection(num_workers=64)), 0),
        (RunConfig(model=MODEL), 1),
        (RunConfig(model=MODEL, rollout=RolloutSection(engine="vllm", kv_memory_gb=4)), 1),
        (RunConfig(model=MODEL, rollout=RolloutSection(engine="vllm")), 2),
        (RunConfig(model=MODEL, actor=ActorSection(cpu_offload=True)), 1),
        (RunConfig(model=MODEL, cluster=ClusterSection(weight_transport="cuda_ipc")), 1),
        (in_pool(PoolSection(processes_per_node=[64], num_cpus=2.0)), 0),
        (in_pool(PoolSection(processes_per_node=[4], num_gpus=0.5)), 2),
        (mixed("openai"), 4),
    ],
)
def test_a_ray_of_the_runs_own_has_as_many_processors_as_the_run_declares(config: RunConfig, num_gpus: int):
    require_room_here(config, num_gpus=num_gpus)


def test_an_evaluation_needs_room_for_engines_and_extra_roles_and_not_for_models():
    extra = {"edit": ExtraRoleSection(class_path="a.B", pool="b")}
    pools = {"a": PoolSection(num_processes=1, num_gpus=8), "b": PoolSection(num_processes=2)}
    config = RunConfig(model=MODEL, cluster=ClusterSection(pools=pools, roles={"actor": "a"}, extra_roles=extra))
    require_room_here(config, num_gpus=1, with_models=False)
    with pytest.raises(ConfigError, match=r"`cluster.pools.a`"):
        require_room_here(config, num_gpus=1)
    with pytest.raises(ConfigError, match=r"It takes `cluster.pools.a`: 1 x \(CPU 1, GPU 8\); `cluster.pools.b`"):
        require_room_here(
            config.model_copy(update={"cluster": config.cluster.model_copy(update={"roles": {"rollout": "a"}})}),
            num_gpus=1,
            with_models=False,
        )


@pytest.mark.ray
async def test_a_run_without_pools_that_a_cluster_could_never_hold_is_refused_at_once(local_ray: Path):
    too_many = RolloutSection(num_workers=int(ray.cluster_resources()["CPU"]))
    config = RunConfig(model=MODEL, rollout=too_many, cluster=ClusterSection(address="auto"))
    with pytest.raises(ConfigError, match=r"the run takes .* `rollout.num_workers`: .*let more nodes join before"):
        await Places.reserved(config, Nodes(max_wait_s=1.0, history=RunHistory()), num_gpus=0.0)


@pytest.mark.ray
async def test_gpus_that_a_run_had_are_waited_for_where_it_starts_again_and_not_done_without(
    local_ray: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "_ray", lambda *args, **kwargs: contextlib.nullcontext())  # it is there already
    config = RunConfig(model=MODEL, cluster=ClusterSection(address="auto", max_wait_s=2.0))
    history = RunHistory(gpus_of_rank=1.0)
    with pytest.raises(InsufficientResourcesError, match=r"GPU 1.*The run ends, since that was `cluster.max_wait_s`"):
        async with launch.launch(config, temp_dir=tmp_path, user_folder=local_ray, history=history):
            pytest.fail("it went on without them")


@pytest.mark.ray
async def test_a_pool_is_reserved_for_its_roles_and_given_back(local_ray: Path):
    pool = await reserve("a", PoolSection(num_processes=2, num_cpus=0.5), roles=["one", "other"])
    places = pool.places["one"]
    assert [(place.num_cpus, place.bundle) for place in places] == [(0.25, (pool.group, 0)), (0.25, (pool.group, 1))]
    workers = [
        spawn(PlainWorker, place, {}, "echo", max_concurrency=1)[0] for place in [*places, *pool.places["other"]]
    ]
    assert len({pid for _, _, pid in [await worker.describe() for worker in workers]}) == 4
    pool.release()


@pytest.mark.ray
async def test_what_a_cluster_does_not_have_is_missing(local_ray: Path):
    num_cpus = int(ray.cluster_resources()["CPU"])
    message = missing(PoolSection(num_processes=num_cpus + 1), *[dict(node.has) for node in living_nodes().values()])
    assert "`cluster.pools.train`: " in message
    assert f"The nodes have: 1 x (CPU {num_cpus})" in message


@pytest.mark.ray
async def test_what_others_hold_is_said_with_their_names(local_ray: Path):
    num_cpus = int(ray.cluster_resources()["CPU"])
    # Workers of earlier tests give their processors back when their handles are gone, so most of them are free.
    held = await reserve("policy", PoolSection(num_processes=1, num_cpus=num_cpus / 2 + 0.5), roles=["echo"])
    with pytest.raises(InsufficientResourcesError, match=r"not free within 1 s. Held by: .*agentrl pool policy \("):
        await reserve("aside", PoolSection(num_processes=1, num_cpus=num_cpus / 2 + 0.5), roles=["echo"], timeout_s=1.0)
    held.release()


@pytest.mark.ray
async def test_what_others_took_between_two_stages_is_waited_for(local_ray: Path):
    half = ray.cluster_resources()["CPU"] / 2
    own = {"own": PoolSection(num_processes=1, num_cpus=half - 0.5)}
    config = RunConfig(model=MODEL, cluster=ClusterSection(pools=own, roles={"actor_rollout": "own"}, max_wait_s=3.0))
    nodes = Nodes(max_wait_s=3.0, history=RunHistory())
    taken = await reserve("theirs", PoolSection(num_processes=1, num_cpus=half + 1), roles=["echo"])
    with pytest.raises(InsufficientResourcesError, match=r"not free within 3 s. Held by: .*agentrl pool theirs"):
        await Places.reserved(config, nodes, num_gpus=0.0, is_restart=True)
    waiting = asyncio.create_task(Places.reserved(config, nodes, num_gpus=0.0, is_restart=True))
    await asyncio.sleep(1)
    assert not waiting.done()
    taken.release()
    (await waiting).close()
