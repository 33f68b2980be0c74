"""Engines on nodes that drain: in virtual time without a process, and on two real nodes."""

import asyncio
import json
import math
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayError

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.placement.node_drain import leaving_draining_nodes, remaining_times_s
from agentrl.engine.base import EngineStats
from agentrl.errors import AgentRLError, WorkerDiedError
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.weight_sync.base import WeightSource
from tests.fakes import idle_stats

ROOT = Path(__file__).resolve().parents[3]


@dataclass(eq=False)
class Engine:
    """The process of an engine, on a node."""

    node: str
    killed_at: float | None = None
    answers: bool = True

    async def start(self) -> None: ...

    async def load_weights(self, source: WeightSource, *, version: int) -> None: ...

    async def stats(self) -> EngineStats:
        return idle_stats()

    async def node_id(self) -> str:
        if not self.answers:
            raise WorkerDiedError("engine: its process died")
        return self.node

    def kill(self) -> None:
        self.killed_at = asyncio.get_running_loop().time()


class Busy:
    """A dispatcher of engines that never run empty."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def close(self, engine: int) -> None:
        self.events.append(f"close {engine}")

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        self.events.append(f"open {engine}")

    async def emptied(self, engine: int) -> None:
        await asyncio.sleep(math.inf)

    def fail(self, error: AgentRLError) -> None:
        self.events.append(f"fail: {error}")

    def recover(self) -> None: ...


@dataclass
class World:
    """Three engines on the nodes `a`, `b`, `b`; a new process goes to `a`. `draining` is what Ray says."""

    draining: Mapping[str, float] | RayError = field(default_factory=dict)
    launched: list[Engine] = field(default_factory=list)
    dispatcher: Busy = field(default_factory=Busy)

    def launch(self, _: int) -> Any:
        self.launched.append(Engine("abb"[len(self.launched)] if len(self.launched) < 3 else "a"))
        return self.launched[-1]

    def look(self) -> Mapping[str, float]:
        if isinstance(self.draining, RayError):
            raise self.draining
        return self.draining


def played(story: Callable[[World], Coroutine[Any, Any, None]], *, patience_s: float = 600.0) -> World:
    async def main() -> World:
        world = World()
        fleet = EngineFleet(world.launch, num_engines=3)
        fleet.report_to(world.dispatcher)
        async with leaving_draining_nodes(fleet, patience_s=patience_s, look=world.look):
            await story(world)
        await fleet.aclose()
        return world

    return run_in_virtual_time(main())


def test_the_engines_of_a_draining_node_move_and_are_gone_before_it():
    async def story(world: World) -> None:
        await asyncio.sleep(100)
        assert world.dispatcher.events == []
        world.draining = {"b": 120.0}
        await asyncio.sleep(200)

    world = played(story)
    assert world.dispatcher.events == ["close 1", "close 2", "open 1", "open 2"]
    assert [engine.node for engine in world.launched] == ["a", "b", "b", "a", "a"]
    gone_at = [engine.killed_at for engine in world.launched[:3]]
    assert gone_at[0] is None
    assert gone_at[1] == gone_at[2]
    assert gone_at[1] is not None
    assert 205 <= gone_at[1] < 220, "all but a margin of the node's time is used"


def test_an_engine_has_its_patience_where_the_node_stays_for_longer():
    async def story(world: World) -> None:
        world.draining = {"b": math.inf}
        await asyncio.sleep(30)
        assert world.launched[1].killed_at is None
        await asyncio.sleep(100)
        assert world.launched[1].killed_at is not None

    played(story, patience_s=60.0)


def test_a_node_whose_time_is_over_is_left_at_once():
    async def story(world: World) -> None:
        world.draining = {"b": -3.0}
        await asyncio.sleep(10)

    assert played(story).dispatcher.events == ["close 1", "close 2", "open 1", "open 2"]


def test_an_engine_that_does_not_say_where_it_is_is_asked_again():
    async def story(world: World) -> None:
        world.launched[1].answers = False
        world.draining = {"b": 0.0}
        await asyncio.sleep(20)
        assert world.dispatcher.events == ["close 2", "open 2"]
        world.launched[1].answers = True
        await asyncio.sleep(20)

    assert played(story).dispatcher.events == ["close 2", "open 2", "close 1", "open 1"]


def test_where_ray_does_not_answer_it_is_asked_again():
    async def story(world: World) -> None:
        world.draining = RayError("no answer")
        await asyncio.sleep(20)
        world.draining = {"b": 0.0}
        await asyncio.sleep(20)

    assert "open 1" in played(story).dispatcher.events


def test_the_watch_ends_when_ray_is_no_longer_used():
    may_answer, has_answered = threading.Event(), threading.Event()

    async def main() -> None:
        loop, is_asked = asyncio.get_running_loop(), asyncio.Event()

        def look() -> Mapping[str, float]:
            loop.call_soon_threadsafe(is_asked.set)
            may_answer.wait(60)
            has_answered.set()
            return {}

        engines = EngineFleet(World().launch, num_engines=1)
        async with leaving_draining_nodes(engines, patience_s=1.0, look=look):
            await is_asked.wait()
            loop.call_soon(may_answer.set)
        assert has_answered.is_set()

    run_in_virtual_time(main())


def test_a_node_is_there_for_ever_where_no_time_is_named_and_none_is_left_where_all_drain():
    deadlines_ms = {"b": 1_090_000, "c": 0}
    assert remaining_times_s(deadlines_ms, {"a", "b", "c"}, now_s=1000.0) == {"b": 90.0, "c": math.inf}
    assert remaining_times_s(deadlines_ms, {"b", "c"}, now_s=1000.0) == {}


@pytest.mark.slow
@pytest.mark.ray
def test_an_engine_leaves_a_real_node_that_drains_with_the_weights_that_it_had():
    driver = subprocess.run(
        [sys.executable, "-m", "tests.cluster.draining"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [line for line in driver.stdout.splitlines() if line.startswith("{")]
    assert lines, driver.stderr[-3000:]
    saw = json.loads(lines[0])
    assert saw["before"] == "127.0.0.3"
    assert saw["after"] == "127.0.0.2"
    assert saw["version"] == 7
    assert saw["deaths"] == 0
