"""Metrics from the engines' counters: prompt tokens found in the prefix cache, and preemptions."""

import asyncio
from collections import Counter
from collections.abc import Iterable

from agentrl.cluster.ray.handles import WorkerHandle, all_of
from agentrl.engine.base import EngineStats
from agentrl.errors import AgentRLError

_ANSWER_TIMEOUT_S = 5.0
"""Metrics are not worth a wait: an engine that does not answer in time is left out."""


class EngineWork:
    """Reads the counters of all engines and returns their increase."""

    def __init__(self, engines: Iterable[WorkerHandle]) -> None:
        """Take the engines in order; a changed handle means a restarted engine, whose counters start at 0."""
        self._engines = engines
        self._seen: dict[int, tuple[WorkerHandle, Counter[str]]] = {}

    async def metrics(self) -> dict[str, float]:
        """Return the work of the engines since the last call; the last work of an engine that died is missing."""
        engines = list(self._engines)
        answers = await all_of(map(_stats_of, engines))
        done: Counter[str] = Counter()
        for index, (engine, stats) in enumerate(zip(engines, answers, strict=True)):
            if stats is not None:
                done += self._new_work(index, engine, stats)
        metrics = {"rollout/preemptions": float(done["preemptions"])}
        if num_prompt_tokens := done["prefilled"] + done["cached"]:
            metrics["rollout/prefix_cached_share"] = done["cached"] / num_prompt_tokens
        return metrics

    def _new_work(self, index: int, engine: WorkerHandle, stats: EngineStats) -> Counter[str]:
        counts = Counter(
            prefilled=stats.num_prefill_tokens, cached=stats.num_cached_tokens, preemptions=stats.num_preemptions
        )
        last, before = self._seen.get(index, (engine, Counter[str]()))
        self._seen[index] = engine, counts
        return counts - before if last is engine else counts


async def _stats_of(engine: WorkerHandle) -> EngineStats | None:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await engine.stats()
    except (TimeoutError, AgentRLError):
        return None  # the trajectories on that engine report its failure
