"""How much memory the processes of a run had at most in each phase of a step."""

import asyncio
import math
from typing import Any

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner
from agentrl.errors import AgentRLError

_TIMEOUT_S = 30.0


class PhaseMemory:
    """Asks every process at the end of a phase for the most that it had since the end of the one before."""

    def __init__(self, learner: Learner, engines: EngineFleet) -> None:
        """Take the processes; what they had before the first phase counts for it."""
        self._learner = learner
        self._engines = engines
        self._metrics: dict[str, float] = {}

    async def end(self, phase: str) -> None:
        """End `phase` (`update`) and begin the next."""
        actor = self._learner.groups["actor"]
        others = dict.fromkeys(group for group in self._learner.groups.values() if group is not actor)
        # Engines in the actor's processes have no memory of their own, and whoever asks first begins the next phase.
        engines = [] if "rollout" in self._learner.groups else list(self._engines)
        processes = {"actor": actor.ranks, "engine": engines} | {group.name: group.ranks for group in others}
        most = await asyncio.gather(*map(self._most, processes.values()))
        for who, peak_bytes in zip(processes, most, strict=True):
            self._metrics[f"memory/{who}_{phase}_bytes_max"] = peak_bytes

    def metrics(self) -> dict[str, float]:
        """Return `memory/<who>_<phase>_bytes_max`, of the rank or engine that had most.

        Who: `actor`, with the roles in its processes; `engine`; each role with processes of its own (`critic`, `ref_reward`).

        NaN: it did not say, or engines and actor are the same processes.
        """
        return dict(self._metrics)

    async def _most(self, workers: list[Any]) -> float:
        return max(await asyncio.gather(*(self._of(worker) for worker in workers)), default=math.nan)

    async def _of(self, worker: Any) -> float:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await worker.take_peak_memory()
        except (TimeoutError, AgentRLError):  # it is dead or dying, which others find out and deal with
            return math.nan
