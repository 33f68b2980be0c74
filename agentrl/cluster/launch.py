"""Starts every process of a run in the order of their dependencies, and ends them in reverse."""

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner
from agentrl.cluster.placement.nodes import Nodes
from agentrl.cluster.placement.resource_pool import missing_resources
from agentrl.cluster.placement.threads import num_cores
from agentrl.cluster.ray.handles import WorkerHandle, all_of, started
from agentrl.cluster.ray.runtime import ray_runtime
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.spawn_roles import (
    SPARE_CALLS,
    Places,
    gpus_per_engine,
    processes_of,
    spawn_engine,
    spawn_extra_roles,
    spawn_models,
)
from agentrl.cluster.weight_relay import WeightRelays
from agentrl.cluster.weight_sync import WeightSync
from agentrl.cluster.workers.engine_calls import EngineHandle
from agentrl.cluster.workers.extra_roles import ExtraRoles
from agentrl.config.layout import pool_size
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.layout import engines_share_gpus, kv_memory_problems, transport_problems
from agentrl.errors import ConfigError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Running processes of rollouts."""

    config: RunConfig
    nodes: Nodes
    engines: EngineFleet
    extra_roles: ExtraRoles

    async def spawn_loop_workers(self, cls: type, worker_config: Any) -> list[WorkerHandle]:
        """Start the agent-loop workers and build their tools; a tool that cannot be built ends the run."""
        rollout = self.config.rollout
        pool = ResourcePool(num_processes=rollout.num_workers)
        calls = rollout.max_concurrent_trajectories * rollout.num_engines + SPARE_CALLS
        workers = spawn(cls, pool, worker_config, "agent_loop", max_concurrency=calls, restart=True)
        await self.nodes.until_placed(workers, needs=str(pool))
        await all_of(map(started, workers))
        return workers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCluster(Cluster):
    """Running processes of rollouts and training."""

    learner: Learner
    weight_sync: WeightSync


@contextlib.asynccontextmanager
async def launch(
    config: RunConfig, *, temp_dir: Path, user_folder: Path, history: RunHistory
) -> AsyncIterator[TrainingCluster]:
    """Run Ray, the engines and the models as long as the context lasts.

    Args:
        config: the whole, checked tree.
        temp_dir: the run's temporary folder (`guarded_run`).
        user_folder: folder of the user's own modules.
        history: counters of this run, which are updated.
    """
    with _ray(config, temp_dir=temp_dir, user_folder=user_folder):
        nodes = Nodes(max_wait_s=config.cluster.max_wait_s, history=history)
        is_restart = history.gpus_of_rank is not None
        if history.gpus_of_rank is None:
            history.gpus_of_rank = _gpus_each(config)
        num_gpus = history.gpus_of_rank
        places = await Places.reserved(config, nodes, num_gpus=num_gpus, is_restart=is_restart)
        with contextlib.closing(places):
            learner = Learner(config, lambda: spawn_models(config, places), history)
            extra_roles = spawn_extra_roles(config, places, history)
            engines = _engines(config, places, learner)
            await _until_placed(extra_roles, nodes)
            are_separate = "rollout" not in learner.groups
            shares_gpus = engines_share_gpus(config, gpus_outside=num_gpus)
            await start_all(learner, engines, in_turn=not are_separate or shares_gpus)
            weight_sync = WeightSync(config, learner, engines)
            late = weight_sync.serving_late_engines()
            async with nodes.watched(), late, contextlib.aclosing(engines):
                yield TrainingCluster(
                    config=config,
                    nodes=nodes,
                    engines=engines,
                    extra_roles=extra_roles,
                    learner=learner,
                    weight_sync=weight_sync,
                )


async def start_all(learner: Learner, engines: EngineFleet, *, in_turn: bool) -> None:
    """Start models and engines; `in_turn`: engines last, since they size their memory by what the models leave."""
    if not in_turn:
        await all_of([learner.start(), engines.start()])
        return
    await learner.start()
    await engines.start()


@contextlib.asynccontextmanager
async def launch_engines(config: RunConfig, *, temp_dir: Path, user_folder: Path) -> AsyncIterator[Cluster]:
    """Run Ray, the engines and the extra roles, without models, for an evaluation; see `launch`."""
    needed = _without_models(config)
    with _ray(needed, temp_dir=temp_dir, user_folder=user_folder, with_models=False):
        num_gpus = _gpus_each(needed, with_models=False)
        nodes = Nodes(max_wait_s=config.cluster.max_wait_s, history=RunHistory())
        places = await Places.reserved(needed, nodes, num_gpus=num_gpus, with_models=False)
        with contextlib.closing(places):
            extra_roles = spawn_extra_roles(config, places, RunHistory())
            engines = _engines(config, places)
            await _until_placed(extra_roles, nodes)
            await engines.start()
            async with nodes.watched(), contextlib.aclosing(engines):
                yield Cluster(config=config, nodes=nodes, engines=engines, extra_roles=extra_roles)


def _without_models(config: RunConfig) -> RunConfig:
    """Return the config with only the roles and pools that an evaluation needs.

    Engines that share the actor's processes in training are outside of pools here, one per process.
    """
    cluster = config.cluster
    has_pool = "rollout" in cluster.roles and config.rollout.engine != "openai"
    roles = {"rollout": cluster.roles["rollout"]} if has_pool else {}
    used = {*roles.values(), *(section.pool for section in cluster.extra_roles.values())}
    pools = {name: section for name, section in cluster.pools.items() if name in used}
    return config.model_copy(update={"cluster": cluster.model_copy(update={"roles": roles, "pools": pools})})


async def _until_placed(extra_roles: ExtraRoles, nodes: Nodes) -> None:
    """Wait for the workers of extra roles; one that cannot be built ends the run here."""
    for role, workers in extra_roles.items():
        await nodes.until_placed(workers, needs=f"what `cluster.extra_roles.{role}.pool` gives it")


@contextlib.contextmanager
def _ray(config: RunConfig, *, temp_dir: Path, user_folder: Path, with_models: bool = True) -> Iterator[None]:
    assert config.run.dir is not None  # `load_run_config` has filled it
    address = config.cluster.address
    where = f"joining the cluster at {address}" if address else "starting on this machine"
    logger.info("Ray: %s", where)
    with ray_runtime(
        address=address,
        num_cpus=_own_cpus(config, with_models=with_models),
        temp_dir=temp_dir,
        user_folder=user_folder,
        keep_logs_in=Path(config.run.dir, "ray_logs"),
    ):
        yield


def _engines(config: RunConfig, places: Places, learner: Learner | None = None) -> EngineFleet:
    """Start the engines, each in its own process or in a rank of the models."""
    of_engine, lives_with_models = places.of_engines(), learner is not None and "rollout" in learner.groups

    def launch_engine(index: int) -> WorkerHandle:
        if learner is not None and lives_with_models:
            return EngineHandle.of(learner.groups["rollout"].ranks[index])
        return spawn_engine(config, of_engine[index], index)

    return EngineFleet(
        launch_engine,
        num_engines=len(of_engine),
        lives_with_models=lives_with_models,
        until_placed=lambda engine: places.nodes.until_placed([engine], needs=str(of_engine[0])),
        nearest=WeightRelays().nearest,
        require_models=learner.require_alive if learner else None,
    )


def _own_cpus(config: RunConfig, *, with_models: bool) -> int:
    """Return the processors that the run's own Ray declares; may exceed the real ones, since workers mostly take turns."""
    needs = processes_of(config, num_gpus=0.0, with_models=with_models)
    return max(num_cores(), math.ceil(sum(bundle.get("CPU", 0.0) for bundles in needs.values() for bundle in bundles)))


def require_room_here(config: RunConfig, *, num_gpus: int, with_models: bool = True) -> None:
    """Refuse a run that this machine, with `num_gpus` GPUs, can never hold; a run that joins a cluster passes."""
    if config.cluster.address is not None:
        return
    if with_models and config.actor.cpu_offload and num_gpus == 0:
        raise ConfigError("`actor.cpu_offload` is set, but this machine has no GPU to offload from; leave it out")
    needed = config if with_models else _without_models(config)
    gpus_each = _gpus_each(needed, num_node_gpus=num_gpus, with_models=with_models)
    needs = processes_of(needed, num_gpus=gpus_each, with_models=with_models)
    machine = {"CPU": float(_own_cpus(needed, with_models=with_models)), "GPU": float(num_gpus)}
    if problem := missing_resources(needed.cluster, needs, total=[machine]):
        raise ConfigError(problem)


def _gpus_each(config: RunConfig, *, num_node_gpus: int | None = None, with_models: bool = True) -> float:
    """Return the GPUs of each rank, and of each tensor-parallel rank of an engine; by default for the nodes of this Ray."""
    if num_node_gpus is None:
        num_node_gpus = int(ray.cluster_resources().get("GPU", 0))
    if not with_models and config.rollout.engine == "openai":
        return 0.0  # it computes nothing itself
    if config.cluster.roles:
        _require_gpus_in_pools(config, num_node_gpus=num_node_gpus)
        return 0.0
    num_ranks = config.actor.num_workers if with_models else 0
    num_gpus = _gpus_per_process(config, num_ranks=num_ranks, num_node_gpus=num_node_gpus)
    if with_models:
        has_gpu, shared = num_gpus > 0, 0 < num_gpus < 1
        problems = transport_problems(config, actor_has_gpu=has_gpu, engine_has_gpu=has_gpu, shared=shared)
        if problems := [*problems, *kv_memory_problems(config, gpus_outside=num_gpus)]:
            raise ConfigError("; ".join(problems))
    return num_gpus


def _require_gpus_in_pools(config: RunConfig, *, num_node_gpus: int) -> None:
    """Refuse a pool without GPUs for a role that computes, on nodes with GPUs: it would silently use the CPU."""
    idle = {"rollout"} if config.rollout.engine == "openai" else set()
    for role, pool in config.cluster.roles.items():
        if num_node_gpus > 0 and config.cluster.pools[pool].num_gpus == 0 and set(role.split("_")) - idle:
            raise ConfigError(
                f"`cluster.pools.{pool}.num_gpus` (of `cluster.roles.{role}`): 0, so it would compute on the CPU of nodes with "
                f"{num_node_gpus} GPUs. Set it to 1, or hide the GPUs from Ray (`CUDA_VISIBLE_DEVICES=`)"
            )


def _gpus_per_process(config: RunConfig, *, num_ranks: int, num_node_gpus: int) -> float:
    if num_node_gpus == 0:
        return 0.0
    in_pools = sum(pool_size(section) * section.num_gpus for section in config.cluster.pools.values())
    num_gpus = max(0, math.floor(num_node_gpus - in_pools))
    wanted = num_ranks + config.rollout.num_engines * gpus_per_engine(config)
    if wanted <= num_gpus:
        return 1.0
    if num_gpus == 1 and num_ranks <= 1 and gpus_per_engine(config) == 1:
        return 1.0 / wanted  # one rank and its engines share the only GPU
    raise ConfigError(
        f"actor.num_workers and rollout.num_engines: {num_ranks} ranks with a GPU each and "
        f"{config.rollout.num_engines} engines with {gpus_per_engine(config)} each need {wanted}, and there are "
        f"{num_gpus}{' beside those of `cluster.pools`' if in_pools else ''}. Make them {num_gpus} together."
    )
