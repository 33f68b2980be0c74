"""Spawns the processes of every role of a layout, as groups of ranks and as engines."""

import functools
from dataclasses import dataclass, field

from agentrl.cluster.placement.nodes import Nodes, living_nodes
from agentrl.cluster.placement.resource_pool import (
    RESERVE_TIMEOUT_S,
    Bundle,
    ReservedPool,
    bundles_of,
    missing_resources,
    reserve,
)
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.workers.engine_calls import EngineHandle
from agentrl.cluster.workers.engine_worker import EngineWorker, ModelEngineWorker
from agentrl.cluster.workers.extra_roles import ExtraRoles, spawn_extra_worker
from agentrl.cluster.workers.model_worker import ModelWorker
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.config.class_path import import_by_path
from agentrl.config.layout import Placement, layout, pool_users
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError

SPARE_CALLS = 64
"""Calls (stats, abort, weights) that must not queue behind those of the trajectories."""
_MODEL_CALLS = 4
"""One that computes, and some queries."""


@dataclass(slots=True, kw_only=True)
class Places:
    """Places of a run's processes, in the pools of the config and outside of them."""

    config: RunConfig
    nodes: Nodes
    num_gpus: float
    """GPUs of a rank, and of a tensor-parallel rank of an engine, without a pool."""
    pools: dict[str, ReservedPool] = field(default_factory=dict)

    @classmethod
    async def reserved(
        cls,
        config: RunConfig,
        nodes: Nodes,
        *,
        num_gpus: float,
        with_models: bool = True,
        is_restart: bool = False,
    ) -> "Places":
        """Reserve every pool of a config, for a run with or without models.

        Raises:
            ConfigError: the cluster cannot hold the run; not checked if it has held it before (`is_restart`).
            InsufficientResourcesError: others held the places for too long, or a node that the run had did not come back.
        """
        needs = processes_of(config, num_gpus=num_gpus, with_models=with_models)
        total = [node.has for node in living_nodes().values()]
        if not is_restart and (problem := missing_resources(config.cluster, needs, total=total)):
            raise ConfigError(problem)
        timeout_s = config.cluster.max_wait_s if is_restart else RESERVE_TIMEOUT_S
        places = cls(config=config, nodes=nodes, num_gpus=num_gpus)
        try:
            for name, section in config.cluster.pools.items():
                roles = pool_users(config, name)
                places.pools[name] = await reserve(name, section, roles=roles, timeout_s=timeout_s)
        except BaseException:
            places.close()
            raise
        return places

    def of_engines(self) -> list[ResourcePool]:
        """Return the place of each process that holds an engine."""
        [engines] = [placement for placement in layout(self.config) if "rollout" in placement.components]
        return self.of(engines)

    def of(self, placement: Placement) -> list[ResourcePool]:
        """Return the place of each process of a role."""
        if placement.pool is not None:
            return self.pools[placement.pool].places[f"cluster.roles.{placement.role}"]
        num_gpus = self.num_gpus * (gpus_per_engine(self.config) if placement.role == "rollout" else 1)
        return [ResourcePool(num_processes=1, num_gpus=num_gpus)] * placement.num_processes

    def close(self) -> None:
        """End what still runs in the pools, and free them."""
        for pool in self.pools.values():
            pool.release()
        self.pools.clear()


def gpus_per_engine(config: RunConfig) -> int:
    """Return the number of GPUs of an engine on a machine with GPUs."""
    return config.rollout.tensor_parallel_size * config.rollout.data_parallel_size


def processes_of(config: RunConfig, *, num_gpus: float, with_models: bool = True) -> dict[str, list[Bundle]]:
    """Return the resources of all processes of a run, keyed by the config key that sets their number; see `Places`."""
    needs = {f"cluster.pools.{name}": bundles_of(section) for name, section in config.cluster.pools.items()}
    for placement in layout(config):
        with_engine = placement.role == "rollout"
        if placement.pool is None and (with_engine or with_models):
            key = "rollout.num_engines" if with_engine else "actor.num_workers"
            gpus = {"GPU": num_gpus * (gpus_per_engine(config) if with_engine else 1)} if num_gpus else {}
            needs[key] = [{"CPU": 1.0, **gpus}] * placement.num_processes
    return needs | {"rollout.num_workers": [{"CPU": 1.0}] * config.rollout.num_workers}


def spawn_models(config: RunConfig, places: Places) -> list[WorkerGroup]:
    """Start the processes of every role with models, and the engines inside them."""
    return [_spawn_ranks(config, placement, places) for placement in layout(config) if placement.role != "rollout"]


def _spawn_ranks(config: RunConfig, placement: Placement, places: Places) -> WorkerGroup:
    role, of_rank, cls, calls = placement.role, places.of(placement), ModelWorker, _MODEL_CALLS
    if "rollout" in placement.components:
        cls, calls = ModelEngineWorker, calls + config.rollout.max_concurrent_trajectories + SPARE_CALLS
    # `ps` shows the name of the class as the title of Ray's processes.
    named = type(f"{cls.__name__}_{role}", (cls,), {"__module__": cls.__module__})
    ranks = [
        spawn(named, place, config, role, max_concurrency=calls, first_rank=rank)[0]
        for rank, place in enumerate(of_rank)
    ]
    until_placed = functools.partial(places.nodes.until_placed, needs=str(of_rank[0]))
    return WorkerGroup(role, ranks, ranks_per_share=config.actor.sequence_parallel_size, until_placed=until_placed)


def spawn_extra_roles(config: RunConfig, places: Places, history: RunHistory) -> ExtraRoles:
    """Start the workers of extra roles; Ray restarts dead ones."""
    workers: dict[str, list[WorkerHandle]] = {}
    for role, section in config.cluster.extra_roles.items():
        cls = import_by_path(section.class_path, key=f"cluster.extra_roles.{role}.class_path")
        calls = config.rollout.max_concurrent_trajectories * config.rollout.num_engines + SPARE_CALLS
        workers[role] = [
            spawn_extra_worker(cls, place, section.config, role, max_concurrency=calls, rank=rank)
            for rank, place in enumerate(places.pools[section.pool].places[f"cluster.extra_roles.{role}"])
        ]
    return ExtraRoles(workers, history)


def spawn_engine(config: RunConfig, place: ResourcePool, index: int) -> WorkerHandle:
    """Start the process of one engine."""
    calls = config.rollout.max_concurrent_trajectories + SPARE_CALLS
    [engine] = spawn(EngineWorker, place, config, "engine", max_concurrency=calls, first_rank=index)
    return EngineHandle.of(engine)
