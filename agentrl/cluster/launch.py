"""Starts every process of a run, in the order in which they need each other, and ends them in the reverse order."""

import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.engine_handle import EngineHandle
from agentrl.cluster.engine_worker import EngineWorker
from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.cluster.learner import Learner, WeightSync
from agentrl.cluster.model_worker import ModelWorker
from agentrl.cluster.runtime import ray_runtime
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.cluster.worker_group import WorkerGroup
from agentrl.config.schema import RunConfig
from agentrl.errors import ConfigError

logger = logging.getLogger(__name__)

_SPARE_CALLS = 64
"""Calls beyond the trajectories (stats, abort, weights) that must not queue behind them."""
_MODEL_CALLS = 4
"""One that computes, and some that only ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The running processes that roll out."""

    config: RunConfig
    engines: EngineFleet

    async def spawn_loop_workers(
        self, cls: type, worker_config: Any, *, secret_env: Mapping[str, str]
    ) -> list[WorkerHandle]:
        """Start the agent-loop workers and build their tools; a tool that cannot be built stops the run here."""
        rollout = self.config.rollout
        pool = ResourcePool(num_processes=rollout.num_workers)
        calls = rollout.max_concurrent_trajectories * rollout.num_engines + _SPARE_CALLS
        workers = spawn(
            cls, pool, worker_config, "agent_loop", max_concurrency=calls, restart=True, secret_env=secret_env
        )
        await all_of(worker.start() for worker in workers)
        return workers


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCluster(Cluster):
    """The same with the actor, and its way to the engines."""

    learner: Learner
    weight_sync: WeightSync


@contextlib.asynccontextmanager
async def launch(config: RunConfig, *, temp_dir: Path, user_folder: Path) -> AsyncIterator[TrainingCluster]:
    """Run Ray, the engines and the actor for as long as the context lasts.

    Args:
        config: the whole, checked tree.
        temp_dir: the run's temporary folder (`guarded_run`).
        user_folder: where the user's own modules are.
    """
    num_ranks = config.actor.num_workers
    with _ray(config, num_worker_processes(config), temp_dir=temp_dir, user_folder=user_folder):
        num_gpus = _gpus_per_process(config, num_ranks=num_ranks)
        engines = _spawn_engines(config, num_gpus)
        role = "actor_ref" if config.algorithm.kl_coefficient > 0 else "actor"
        ranks = spawn(
            ModelWorker,
            ResourcePool(num_processes=num_ranks, num_gpus=num_gpus),
            config,
            role,
            max_concurrency=_MODEL_CALLS,
            env={"OMP_NUM_THREADS": str(threads_per_rank(config))},
        )
        group = WorkerGroup(role, ranks)
        learner = Learner(config.actor, dict.fromkeys(role.split("_"), group))
        await all_of([group.setup(), engines.start()])
        async with contextlib.aclosing(engines):
            weight_sync = WeightSync(learner, engines)
            yield TrainingCluster(config=config, engines=engines, learner=learner, weight_sync=weight_sync)


@contextlib.asynccontextmanager
async def launch_engines(config: RunConfig, *, temp_dir: Path, user_folder: Path) -> AsyncIterator[Cluster]:
    """Run Ray and the engines alone, for an evaluation; see `launch`."""
    num_processes = config.rollout.num_engines + config.rollout.num_workers
    with _ray(config, num_processes, temp_dir=temp_dir, user_folder=user_folder):
        # An engine that asks servers computes nothing itself.
        num_gpus = 0.0 if config.rollout.engine == "openai" else _gpus_per_process(config, num_ranks=0)
        engines = _spawn_engines(config, num_gpus)
        await engines.start()
        async with contextlib.aclosing(engines):
            yield Cluster(config=config, engines=engines)


@contextlib.contextmanager
def _ray(config: RunConfig, num_processes: int, *, temp_dir: Path, user_folder: Path) -> Iterator[None]:
    assert config.run.dir is not None  # `load_run_config` has filled it
    logger.info("starting Ray with %d workers", num_processes)
    with ray_runtime(
        num_cpus=max(num_cores(), num_processes),
        temp_dir=temp_dir,
        user_folder=user_folder,
        keep_logs_in=Path(config.run.dir, "ray_logs"),
    ):
        yield


def _spawn_engines(config: RunConfig, num_gpus: float) -> EngineFleet:
    def launch(index: int) -> WorkerHandle:
        pool = ResourcePool(num_processes=1, num_gpus=num_gpus * gpus_per_engine(config))
        calls = config.rollout.max_concurrent_trajectories + _SPARE_CALLS
        [engine] = spawn(EngineWorker, pool, config, "engine", max_concurrency=calls, first_rank=index)
        return EngineHandle.of(engine)

    return EngineFleet(launch, num_engines=config.rollout.num_engines)


def num_cores() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0))


def num_worker_processes(config: RunConfig) -> int:
    """Return how many Ray workers a run has."""
    return config.rollout.num_engines + config.rollout.num_workers + config.actor.num_workers


def threads_per_rank(config: RunConfig) -> int:
    """Return the CPU threads of one actor rank."""
    return config.actor.num_threads_per_worker or max(1, num_cores() // config.actor.num_workers)


def gpus_per_engine(config: RunConfig) -> int:
    """Return how many GPUs an engine takes where there are GPUs."""
    return config.rollout.tensor_parallel_size * config.rollout.data_parallel_size


def _gpus_per_process(config: RunConfig, *, num_ranks: int) -> float:
    """Return the GPUs of one rank, which are also those of each GPU's worth of an engine."""
    num_gpus = int(ray.cluster_resources().get("GPU", 0))
    if num_gpus == 0:
        return 0.0
    wanted = num_ranks + config.rollout.num_engines * gpus_per_engine(config)
    if wanted <= num_gpus:
        return 1.0
    if num_gpus == 1 and num_ranks <= 1 and gpus_per_engine(config) == 1:
        return 1.0 / wanted  # one rank and its engines share the only GPU
    raise ConfigError(
        f"actor.num_workers and rollout.num_engines: {num_ranks} ranks with a GPU each and "
        f"{config.rollout.num_engines} engines with {gpus_per_engine(config)} each need {wanted}, and there are "
        f"{num_gpus}. Make them {num_gpus} together."
    )
