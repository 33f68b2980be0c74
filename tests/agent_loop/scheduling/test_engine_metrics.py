"""Work of engines between two readings of counters, which restart with every new process."""

import asyncio
from dataclasses import dataclass, replace
from typing import Any, cast

from agentrl.agent_loop.scheduling.engine_metrics import EngineWork
from agentrl.engine.base import EngineStats
from agentrl.errors import WorkerDiedError
from agentrl.simulation.virtual_time import run_in_virtual_time
from tests.fakes import idle_stats


@dataclass(eq=False)
class Engine:
    """One process of an engine, and what it has done."""

    prefilled: int = 0
    cached: int = 0
    preemptions: int = 0
    dies: bool = False
    hangs: bool = False

    async def stats(self) -> EngineStats:
        if self.dies:
            raise WorkerDiedError("engine: its process died")
        if self.hangs:
            await asyncio.sleep(1_000)
        return replace(
            idle_stats(),
            num_prefill_tokens=self.prefilled,
            num_cached_tokens=self.cached,
            num_preemptions=self.preemptions,
        )


def work_of(*engines: Engine) -> tuple[list[Engine], EngineWork]:
    handles = list(engines)
    return handles, EngineWork(cast(Any, handles))


async def test_what_came_since_the_last_look_is_counted_over_all_engines():
    (first, second), work = work_of(Engine(prefilled=100, cached=300), Engine(prefilled=100, preemptions=1))
    assert await work.metrics() == {"rollout/preemptions": 1.0, "rollout/prefix_cached_share": 0.6}
    first.prefilled, second.cached, second.preemptions = 110, 30, 4
    assert await work.metrics() == {"rollout/preemptions": 3.0, "rollout/prefix_cached_share": 0.75}


async def test_without_prompts_there_is_no_share_of_them():
    _, work = work_of(Engine(prefilled=100))
    await work.metrics()
    assert await work.metrics() == {"rollout/preemptions": 0.0}


async def test_an_engine_that_was_started_again_counts_from_zero():
    handles, work = work_of(Engine(prefilled=1000, cached=1000))
    await work.metrics()
    handles[0] = Engine(prefilled=2000, cached=6000, preemptions=2)
    assert await work.metrics() == {"rollout/preemptions": 2.0, "rollout/prefix_cached_share": 0.75}


def test_an_engine_that_is_dead_or_hangs_is_left_out_and_soon():
    handles, work = work_of(Engine(prefilled=10, cached=10), Engine(dies=True), Engine(hangs=True))

    async def main() -> float:
        assert await work.metrics() == {"rollout/preemptions": 0.0, "rollout/prefix_cached_share": 0.5}
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) <= 5.0
    assert len(handles) == 3
