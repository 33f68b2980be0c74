"""Weight sync: moves the actor's weights into every engine, and orders the use of memory that both share."""

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Any

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner
from agentrl.cluster.weight_relay import WeightRelays
from agentrl.config.layout import layout
from agentrl.config.schema.run import RunConfig
from agentrl.errors import AgentRLError, ModelDiedError, WorkerError
from agentrl.weight_sync.base import Transport, WeightSource

logger = logging.getLogger(__name__)


_TIMEOUT_S = 30.0


class PhaseMemory:
    """Asks every process at the end of a phase for its peak since the last phase."""

    def __init__(self, learner: Learner, engines: EngineFleet) -> None:
        """Take the processes; their peak before the first phase counts for it."""
        self._learner = learner
        self._engines = engines
        self._metrics: dict[str, float] = {}

    async def end(self, phase: str) -> None:
        """End `phase` (`update`) and begin the next."""
        actor = self._learner.groups["actor"]
        others = dict.fromkeys(group for group in self._learner.groups.values() if group is not actor)
        # Engines in the actor's processes have no memory of their own, and asking twice would reset the peak.
        engines = [] if "rollout" in self._learner.groups else list(self._engines)
        processes = {"actor": actor.ranks, "engine": engines} | {group.name: group.ranks for group in others}
        peaks = await asyncio.gather(*map(self._peak, processes.values()))
        for process, peak_bytes in zip(processes, peaks, strict=True):
            self._metrics[f"memory/{process}_{phase}_bytes_max"] = peak_bytes

    def metrics(self) -> dict[str, float]:
        """Return `memory/<process>_<phase>_bytes_max`, the largest over the ranks or engines.

        `<process>` is `actor`, with the roles in its processes; `engine`; or a role with its own processes (`critic`,
        `ref_reward`). NaN: no answer, or the engines are in the actor's processes.
        """
        return dict(self._metrics)

    async def _peak(self, workers: list[Any]) -> float:
        return max(await asyncio.gather(*map(self._peak_of_one, workers)), default=math.nan)

    async def _peak_of_one(self, worker: Any) -> float:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await worker.take_peak_memory()
        except (TimeoutError, AgentRLError):  # a dead worker is handled elsewhere
            return math.nan


_PUBLISH_TIMEOUT_S = 300.0


class WeightSync:
    """Moves the actor's weights into every engine.

    If engines and actor share memory (`cluster.colocated`), the calls of a step are: `make_room` (engines sleep) -> update of
    the actor -> `push` (weights wake, are loaded, the rest wakes).
    """

    def __init__(self, config: RunConfig, learner: Learner, engines: EngineFleet, relays: WeightRelays) -> None:
        """Take both ends, and the relays between nodes."""
        self._config = config
        self._learner = learner
        self._engines = engines
        self._relays = relays
        self._transport = transport_of(config)
        self._processes_per_engine = config.rollout.tensor_parallel_size * config.rollout.data_parallel_size
        self._memory = PhaseMemory(learner, engines)
        self._sending: asyncio.Task[None] | None = None

    async def make_room(self) -> None:
        """Free shared memory of the engines for the actor until the next `push`."""
        await self._memory.end("rollout")
        if self._config.cluster.colocated:
            await self._engines.sleep()

    async def push(self, *, version: int) -> None:
        """Load the current weights into all engines as `version`; see `EngineFleet.push`.

        Raises:
            EngineError: an engine refuses them, or none is left.
            ModelDiedError: the actor did not gather them in time, and one of its ranks does not answer.
            WorkerError: the actor did not gather them in time, although all ranks answer.
        """
        await self._memory.end("update")

        async def publish(engines: Sequence[str]) -> WeightSource:
            return await self._publish(engines, version)

        try:
            await self._engines.push(publish, version=version)
        except AgentRLError:
            await self._wait_for_send()  # raises the cause if the actor is gone
            raise
        await self._wait_for_send()
        await self._memory.end("weight_sync")

    def metrics(self) -> dict[str, float]:
        """Return `memory/...` of the last step: peak memory of the processes by phase."""
        return self._memory.metrics()

    async def _publish(self, engines: Sequence[str], version: int) -> WeightSource:
        receivers = [f"{engine}/{process}" for engine in engines for process in range(self._processes_per_engine)]
        try:
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                await self._wait_for_send()
                source = await self._learner.publish_weights(self._transport, receivers)
                self._relays.begin(at=await self._learner.weights_node())
        except TimeoutError as error:
            what = f"weight sync of version {version}: the actor did not gather its weights in {_PUBLISH_TIMEOUT_S:g} s"
            if silent := await self._learner.silent_ranks():
                raise ModelDiedError(f"{', '.join(silent)}: no answer, treated as dead: {what}") from error
            raise WorkerError(f"{what}, although all of its ranks answer") from error
        if source.transport.is_stream:
            self._sending = asyncio.create_task(self._send(source, version))
        return source

    async def _send(self, source: WeightSource, version: int) -> None:
        if problem := await self._learner.send_weights(source):
            logger.warning("weight sync of version %d: %s", version, problem)

    async def _wait_for_send(self) -> None:
        """Wait for the running send of the actor, which has its own time limit."""
        sending, self._sending = self._sending, None  # its error must be raised only once
        if sending is not None:
            await sending


def transport_of(config: RunConfig) -> Transport:
    """Return how weights travel: in-process if the actor's only rank holds the engine."""
    together = any({"actor", "rollout"} <= set(placement.components) for placement in layout(config))
    if together and config.actor.num_workers == 1:
        return Transport.IN_PROCESS
    return Transport(config.cluster.weight_transport)
