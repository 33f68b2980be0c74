"""One rank as a Ray worker: holds the components of its role and passes calls on to them.

All computation runs in one thread, in the order of the calls; the event loop stays responsive.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from agentrl.cluster.placement.threads import threads_per_rank
from agentrl.cluster.ray.network import own_address, own_node_id, use_interface_of
from agentrl.config.class_path import import_by_path
from agentrl.config.schema.run import RunConfig
from agentrl.errors import CheckpointError, PeerLostError
from agentrl.observability.peak_memory import take_peak_memory
from agentrl.types import Trajectory
from agentrl.user_code import contained

if TYPE_CHECKING:
    from agentrl.training.parallel import Store
    from agentrl.training.update.update_plan import UpdateShard

T = TypeVar("T")

COMPONENTS = {
    "actor": "agentrl.training.actor.Actor",
    "ref": "agentrl.training.reference.Reference",
    "critic": "agentrl.training.critic.Critic",
    "reward": "agentrl.training.reward_model.RewardModel",
}
"""Import paths: these classes load torch, which only the worker's process needs."""


class WorkerProcess:
    """Facts about the process of a worker."""

    async def take_peak_memory(self) -> float:
        """Return the peak memory of this process and its children since the last call."""
        return take_peak_memory()

    async def node_id(self) -> str:
        """Return the Ray node of this process."""
        return own_node_id()


class ModelWorker(WorkerProcess):
    """One rank of a role such as `actor_ref`, with one component for each part of the name."""

    def __init__(self, config: RunConfig, role: str) -> None:
        self._components: dict[str, Any] = {
            name: import_by_path(COMPONENTS[name], key=f"role {name}")(config, name)
            for name in role.split("_")
            if name in COMPONENTS
        }
        self._thread = ThreadPoolExecutor(1, "agentrl-model")
        self._store: Store | None = None
        self._num_threads = threads_per_rank(config)
        self._sequence_parallel_size = config.actor.sequence_parallel_size
        self._shares_gpu = config.cluster.colocated

    async def open_store(self) -> tuple[str, int]:
        """Open a store for the process group on this rank, rank 0, and return its host and port."""

        def open_here() -> tuple[str, int]:
            from agentrl.training.parallel import open_store

            host = own_address()
            self._store = open_store(host)
            return host, self._store.port

        return await self._run(open_here)

    async def setup(self, rank: int, world_size: int, host: str, port: int) -> None:
        """Join the process group that meets at the store, and set up every component."""

        def join() -> None:
            from agentrl.training.parallel import Parallel, ParallelContext

            use_interface_of(own_address())
            place = ParallelContext(
                rank=rank,
                world_size=world_size,
                master_addr=host,
                master_port=port,
                store=self._store,
                sequence_parallel_size=self._sequence_parallel_size,
                num_threads=self._num_threads,
            )
            parallel = Parallel(place)
            for component in self._components.values():
                component.setup(parallel)

        await self._run(join)

    async def ping(self) -> None:
        """Answer at once, also during a computation."""

    async def call(self, component: str, method: str, *args: Any) -> Any:
        """Call a method of a component; all calls run in one thread."""
        return await self._run(getattr(self._components[component], method), *args)

    async def saved(self, component: str) -> bool | CheckpointError:
        """Return whether the pending `save` of a component is written, also during a computation.

        A failure is returned, not raised: it must not end an update.
        """
        try:
            return self._components[component].saved()
        except CheckpointError as error:
            return error

    async def score(self, component: str, method: str, *trajectories: Trajectory) -> list[Any]:
        """Call a method that returns one result per trajectory; return None, then each result as a value of its own."""
        scores = getattr(self._components[component], method)
        return [None, *await self._run(self._run_and_free, scores, trajectories)]

    async def update(
        self, component: str, shard: "UpdateShard", input_names: Sequence[str], *values: Any
    ) -> dict[str, float]:
        """Run one step's update of a component on this rank's share; every rank must be called.

        `values` are the trajectories of `shard.items`, then for each of `input_names` (fields of `TokenInputs`) one array per
        trajectory. They are separate arguments because Ray resolves references only there.
        """
        from agentrl.training.packing.sequences import TokenInputs

        count = len(shard.items)
        trajectories, *columns = [values[first : first + count] for first in range(0, len(values), count or 1)] or [()]
        inputs = [
            TokenInputs(**{name: column[i] for name, column in zip(input_names, columns, strict=True)})
            for i in range(count)
        ]
        update = self._components[component].update
        return await self._run(self._run_and_free, update, shard, trajectories, inputs)

    def _run_and_free(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function, then free cached memory if others share this GPU."""
        result = function(*args)
        if self._shares_gpu:
            from agentrl.weight_sync.transports.cuda_ipc import release_cached_memory

            release_cached_memory()
        return result

    async def _run(self, function: Callable[..., T], *args: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, contained, function, *args)
        except Exception as error:  # a broken connection raises different classes, which `is_lost_peer` knows
            from agentrl.training.parallel import is_lost_peer

            if is_lost_peer(error):
                raise PeerLostError(f"a collective lost another rank: {error}") from error
            raise
