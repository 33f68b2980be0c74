"""How much of the prompts the engines found computed already, and how much they had to compute again."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.engine.base import EngineStats
from agentrl.errors import AgentRLError

_ANSWER_TIMEOUT_S = 5.0
"""Figures are not worth waiting for: an engine that does not answer is left out."""


class EngineWork:
    """Reads the counters of all engines, and says what came to them."""

    def __init__(self, engines: Sequence[WorkerHandle]) -> None:
        """Take the engines by number; where the handle changes, the engine has been started again, and counts from 0."""
        self._engines = engines
        self._seen: dict[int, tuple[WorkerHandle, Counter[str]]] = {}

    async def metrics(self) -> dict[str, float]:
        """Return what the engines did since the last call, less what those did that died since."""
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
        return None  # whoever has work there finds out
