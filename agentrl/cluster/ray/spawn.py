"""Turns any plain class into a Ray worker."""

import inspect
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.actor import ActorHandle
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.errors import ConfigError
from agentrl.observability.logs import configure_worker_logging

_WORKER_ENV = {
    # Engine, actor and judge take turns on the cores; OpenMP threads that spin would take them from each other.
    "OMP_WAIT_POLICY": "PASSIVE",
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
        amounts = {"CPU": self.num_cpus, "GPU": self.num_gpus}
        shown = ", ".join(f"{kind} {amount:g}" for kind, amount in amounts.items() if amount) or "nothing"
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
    env: dict[str, str] | None = None,
) -> list[WorkerHandle]:
    """Start `pool.num_processes` workers of `cls(config, role)` and return a handle for each.

    Args:
        cls: a plain class; it needs nothing of Ray.
        pool: how many processes, and what each declares.
        config: plain data, the same for every process.
        role: passed to the constructor; also names the processes.
        max_concurrency: calls that one process answers at a time (Ray's own default of 1,000 stalls large clusters).
        first_rank: number of the first process, in its name.
        restart: Ray restarts a dead worker; right for workers that build their state at first use.
        env: further environment variables of the processes; Ray writes them into its logs.

    Raises:
        ConfigError: `cls` cannot be a worker; the message says what is missing.
    """
    check_worker_class(cls)
    options: dict[str, Any] = {
        "num_cpus": pool.num_cpus,
        "num_gpus": pool.num_gpus,
        "max_concurrency": max_concurrency,
        # Ray's record of every call is unused, and a rollout makes thousands a second.
        "enable_task_events": False,
        "max_restarts": -1 if restart else 0,
        "runtime_env": {"env_vars": _WORKER_ENV | (env or {})},
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


def check_worker_class(cls: object) -> None:
    """Refuse an unsuitable worker class before Ray would fail deep inside.

    Raises:
        ConfigError: it is no class, is abstract, or its constructor is async or does not take `config` and `role`.
    """
    if not inspect.isclass(cls):
        raise ConfigError(f"worker class: {cls!r} is not a class. Give the class itself; agentrl wraps it for Ray.")
    name, form = f"worker class `{cls.__module__}.{cls.__qualname__}`", "`def __init__(self, config, role)`"
    if inspect.isabstract(cls):
        lacking = ", ".join(sorted(getattr(cls, "__abstractmethods__", ())))
        raise ConfigError(f"{name} is abstract: it lacks {lacking}. Implement these.")
    if inspect.iscoroutinefunction(cls.__init__):
        raise ConfigError(f"{name}: its constructor is async, and nobody awaits one. Declare it as {form}.")
    try:
        given = inspect.signature(cls.__init__).bind("itself", "config", "role").arguments
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{name}: its constructor cannot be called with a config and a role: {error}. Declare it as {form}."
        ) from error
    if (given.get("config"), given.get("role")) != ("config", "role"):
        raise ConfigError(f"{name}: its constructor must take `config`, then `role`: {form}.")
