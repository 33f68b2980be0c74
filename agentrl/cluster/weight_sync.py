"""Weight sync: moves the actor's weights into every engine, and orders the use of memory that both share."""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from typing import Any

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner
from agentrl.cluster.ray.polling import watching
from agentrl.config.schema.run import RunConfig
from agentrl.errors import AgentRLError, EngineError, RestoreRequiredError, WorkerError

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 30.0


class WeightSync:
    """Moves weights one way: the learner publishes a version, then the engines load it.

    If engines and actor share memory (`cluster.colocated`), the calls of a step are: `make_room` (engines sleep) -> update of
    the actor -> `push` (weights wake, are loaded, the rest wakes).
    """

    def __init__(self, config: RunConfig, learner: Learner, engines: EngineFleet) -> None:
        self._is_colocated = config.cluster.colocated
        self._learner = learner
        self._engines = engines
        self._lock = asyncio.Lock()
        """Held while weights are published, read, or dropped: published memory is overwritten by the next version."""
        self._peaks: dict[str, float] = {}

    async def make_room(self) -> None:
        """Free shared memory of the engines for the actor until the next `push`."""
        await self._end_phase("rollout")
        if self._is_colocated:
            async with self._lock:
                await self._engines.sleep()

    async def push(self, *, version: int) -> None:
        """Publish the current weights as `version`, and load them into every engine.

        Raises:
            EngineError: an engine refuses them, or none is left.
            WorkerError: the actor did not publish them; see `Learner.publish`.
        """
        await self._end_phase("update")
        async with self._lock:
            source = await self._learner.publish(version, self._engines.receivers())
            try:
                await self._engines.load(source)
            except AgentRLError:
                await self._learner.sent()  # raises the cause if the actor is gone
                raise
            await self._learner.sent()
        await self._end_phase("weight_sync")

    @contextlib.asynccontextmanager
    async def serving_late_engines(self) -> AsyncIterator[None]:
        """Load the current weights into engines that come late, after a restart, as long as the context lasts."""
        async with watching(self._serve_late_engines(), what="engines that wait for weights"):
            yield

    def metrics(self) -> dict[str, float]:
        """Return `memory/<process>_<phase>_bytes_max` of the last step, the largest over the ranks or engines.

        `<process>` is `actor`, with the roles in its processes; `engine`; or a role with its own processes (`critic`,
        `ref_reward`). NaN: no answer, or the engines are in the actor's processes.
        """
        return dict(self._peaks)

    async def _serve_late_engines(self) -> None:
        while True:
            await self._engines.came_late.wait()
            self._engines.came_late.clear()
            async with self._lock:
                try:
                    late, source = self._engines.receivers(late=True), self._learner.published
                    if late and source:  # otherwise the next push serves them
                        if source.transport.is_stream and not self._engines.hold(source, late):  # its bytes are gone
                            source = await self._learner.publish(source.version, late)
                        await self._engines.load(source)
                        await self._learner.sent()
                except RestoreRequiredError as error:
                    self._engines.fail(error)
                except WorkerError as error:  # the actor is busy with its update
                    logger.warning("weight sync: %s; late engines wait for the next version", error)
                except AgentRLError as error:
                    self._engines.fail(error)
                except Exception as error:  # nobody else would notice, and all would wait for ever
                    logger.exception("weight sync: serving late engines failed")
                    self._engines.fail(EngineError(f"weight sync: serving late engines failed, a bug: {error!r}"))

    async def _end_phase(self, phase: str) -> None:
        """Ask every process for its peak memory since the last phase."""
        actor = self._learner.groups["actor"]
        others = dict.fromkeys(group for group in self._learner.groups.values() if group is not actor)
        # Engines in the actor's processes have no memory of their own, and asking twice would reset the peak.
        engines = [] if "rollout" in self._learner.groups else list(self._engines)
        processes = {"actor": actor.ranks, "engine": engines} | {group.name: group.ranks for group in others}
        peaks = await asyncio.gather(*map(_peak_of, processes.values()))
        for process, peak_bytes in zip(processes, peaks, strict=True):
            self._peaks[f"memory/{process}_{phase}_bytes_max"] = peak_bytes


async def _peak_of(workers: list[Any]) -> float:
    async def ask(worker: Any) -> float:
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await worker.take_peak_memory()
        except (TimeoutError, AgentRLError):  # a dead worker is handled elsewhere
            return math.nan

    return max(await asyncio.gather(*map(ask, workers)), default=math.nan)
