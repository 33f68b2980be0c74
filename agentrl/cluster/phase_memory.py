"""Peak memory of a run's processes in each phase of a step."""

import asyncio
import math
from typing import Any

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner
from agentrl.errors import AgentRLError

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
