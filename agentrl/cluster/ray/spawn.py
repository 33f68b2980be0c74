"""Turns any plain class into a Ray worker."""

from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.run_history import format_resources
from agentrl.observability.logs import configure_worker_logging

_WORKER_ENV = {
    # Engine, actor and judge take turns on the cores; OpenMP threads that spin would take them from each other.
    "OMP_WAIT_POLICY": "PASSIVE",
    # An agent loop encodes one text at a time; a thread of its own for it costs more than it gains.
    "TOKENIZERS_PARALLELISM": "false",
    # Progress bars of workers would break the run's own.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    # By default Ray does not hide the GPUs from processes that asked for none.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """Resources that each process of a kind of worker declares to Ray."""

    num_processes: int
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    node_id: str | None = None
    """Ray node to run on; absent: wherever there is room."""
    bundle: tuple[PlacementGroup, int] | None = None
    """Reserved bundle to run in (`agentrl.cluster.placement.resource_pool`)."""
    pool: str = ""
    """Description of the whole pool, for messages."""

    def __str__(self) -> str:
        shown = format_resources({"CPU": self.num_cpus, "GPU": self.num_gpus})
        return f"{shown} of {self.pool}" if self.pool else shown


def spawn(
    cls: type,
    pool: ResourcePool,
    config: Any,
    role: str,
    *,
    max_concurrency: int,
    first_rank: int = 0,
    restart: bool = False,
) -> list[WorkerHandle]:
    """Start `pool.num_processes` workers of `cls(config, role)` and return a handle for each.

    Args:
        cls: a plain class with `__init__(self, config, role)`; it needs nothing of Ray.
        pool: how many processes, and what each declares.
        config: plain data, the same for every process.
        role: passed to the constructor; also names the processes.
        max_concurrency: calls that one process answers at a time (Ray's own default of 1,000 stalls large clusters).
        first_rank: number of the first process, in its name.
        restart: Ray restarts a dead worker; right for workers that build their state at first use.
    """
    options: dict[str, Any] = {
        "num_cpus": pool.num_cpus,
        "num_gpus": pool.num_gpus,
        "max_concurrency": max_concurrency,
        # Ray's record of every call is unused, and a rollout makes thousands a second.
        "enable_task_events": False,
        "max_restarts": -1 if restart else 0,
        "runtime_env": {"env_vars": _WORKER_ENV},
    }
    if pool.bundle is not None:
        group, index = pool.bundle
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, index)
    elif pool.node_id is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(pool.node_id, soft=False)
    wrapped = ray.remote(**options)(_prepared(cls))
    return [
        WorkerHandle(cast(ActorHandle, wrapped.remote(config, role)), f"{role} {first_rank + index}")
        for index in range(pool.num_processes)
    ]


def _prepared(cls: type) -> type:
    """Return `cls` with a constructor that first sets up logging."""

    def __init__(self: Any, config: Any, role: str) -> None:
        configure_worker_logging()
        cast(Any, cls).__init__(self, config, role)

    namespace: dict[str, Any] = {"__init__": __init__, "__module__": cls.__module__}
    return type(cls.__name__, (cls,), namespace)
