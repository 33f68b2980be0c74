"""Turns any plain class into a Ray worker: the one place where classes are wrapped."""

import inspect
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.actor import ActorHandle

from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import ConfigError

_WORKER_ENV = {
    # Engine, actor and judge share the cores in turn; OpenMP threads that spin while they wait take them from each other.
    "OMP_WAIT_POLICY": "PASSIVE",
    # Bars of libraries inside workers would break the run's own.
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePool:
    """What each process of a kind of worker declares to Ray."""

    num_processes: int
    num_cpus: float = 1.0
    num_gpus: float = 0.0


def spawn(
    cls: type,
    pool: ResourcePool,
    config: Any,
    role: str,
    *,
    max_concurrency: int,
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
        restart: Ray starts a worker that died again; right for workers that build their state at first use.
        env: further environment variables of the processes.

    Raises:
        ConfigError: `cls` cannot be a worker; the message says what is missing.
    """
    check_worker_class(cls)
    options: dict[str, Any] = {
        "num_cpus": pool.num_cpus,
        "num_gpus": pool.num_gpus,
        "max_concurrency": max_concurrency,
        "max_restarts": -1 if restart else 0,
        "runtime_env": {"env_vars": _WORKER_ENV | (env or {})},
    }
    wrapped = ray.remote(**options)(cls)
    return [
        WorkerHandle(cast(ActorHandle, wrapped.remote(config, role)), f"{role} {rank}")
        for rank in range(pool.num_processes)
    ]


def check_worker_class(cls: object) -> None:
    """Refuse what cannot be a worker, before Ray would fail deep inside.

    Raises:
        ConfigError: it is no class, or its constructor does not take `config` and `role`.
    """
    if not inspect.isclass(cls):
        raise ConfigError(f"worker class: {cls!r} is not a class. Give the class itself; agentrl wraps it for Ray.")
    parameters = inspect.signature(cls).parameters
    missing = [name for name in ("config", "role") if name not in parameters]
    if missing:
        raise ConfigError(
            f"worker class `{cls.__module__}.{cls.__qualname__}`: its constructor takes no "
            f"{' and no '.join(f'`{name}`' for name in missing)}. Declare it as `def __init__(self, config, role)`."
        )
