"""A fleet of engines that are no processes, played in virtual time: they die, hang and do not start as they are told."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.weight_sync import WeightSync
from agentrl.config.schema.cluster import ClusterSection
from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.engine.base import EngineStats
from agentrl.errors import (
    AgentRLError,
    EngineDeadError,
    EngineError,
    InsufficientResourcesError,
    ModelDiedError,
    WorkerDiedError,
)
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.weight_sync.base import Transport, WeightSource
from tests.fakes import idle_stats

GONE = WorkerDiedError("engine: its process died")


def source(address: str) -> WeightSource:
    return WeightSource(transport=Transport.SHARED_MEMORY, address=address, size_bytes=0, tensors=())


@dataclass(eq=False)
class FakeEngine:
    """One process of an engine; `dies` and `hangs` are what happens to it."""

    index: int
    start_fails: bool = False
    dies: bool = False
    hangs: bool = False
    refuses_weights: bool = False
    start_s: float = 1.0
    load_s: float = 0.0
    stats_s: float = 0.0
    kv_tokens: int = 1000
    started: bool = False
    sleeps: bool = False
    loaded: list[tuple[str, int]] = field(default_factory=list)

    async def start(self) -> None:
        await asyncio.sleep(self.start_s)
        await self._answer()
        if self.start_fails:
            raise EngineError("it does not start")
        self.started = True

    async def take_peak_memory(self) -> float:
        return 0.0

    async def stats(self) -> EngineStats:
        await self._answer()
        await asyncio.sleep(self.stats_s)
        return idle_stats(kv_tokens=self.kv_tokens)

    async def sleep(self) -> None:
        await self._answer()
        self.sleeps = True

    async def wake(self, tags: tuple[str, ...]) -> None:
        await self._answer()
        self.sleeps = False

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        assert not self.sleeps
        await self._answer()
        await asyncio.sleep(self.load_s)
        await self._answer()
        if self.refuses_weights:
            raise EngineError("these are not the model's weights")
        self.loaded.append((source.address, version))

    def kill(self) -> None:
        self.dies = True

    async def _answer(self) -> None:
        if self.hangs:
            await asyncio.sleep(10_000)
        if self.dies:
            raise GONE


class FakeLedger:
    """Notes what it is told, with what the engines held by then."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.closed: set[int] = set()
        self.kv_tokens: dict[int, int] = {}
        self.events: list[str] = []
        self.failure: AgentRLError | None = None

    def close(self, engine: int) -> None:
        self.closed.add(engine)
        self.events.append(f"close {engine}")

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        self.closed.discard(engine)
        self.kv_tokens[engine] = kv_tokens
        now = self.world.now(engine)
        self.events.append(f"open {engine} with {now.loaded[-1:]}")
        assert now.started
        assert not now.dies

    def fail(self, error: AgentRLError) -> None:
        self.failure = error

    def recover(self) -> None:
        self.failure = None
        self.events.append("recover")


class FakeLearner:
    """Publishes weights at addresses such as `w3`."""

    def __init__(self) -> None:
        self.groups: dict[str, Any] = {"actor": SimpleNamespace(ranks=[])}
        self.published: WeightSource | None = None

    async def publish(self, version: int, engines: Sequence[str]) -> WeightSource:
        self.published = replace(source(f"w{version}"), version=version)
        return self.published

    async def sent(self) -> None: ...


class World:
    """A fleet of fake engines; `launched` are all processes so far, `prepare` changes those to come."""

    def __init__(self, *, num_engines: int = 2, lives_with_models: bool = False) -> None:
        self.launched: list[FakeEngine] = []
        self.prepare: Callable[[FakeEngine], None] = lambda engine: None
        self.room_wait_s = 0.0
        self.fleet = EngineFleet(
            self._launch,
            num_engines=num_engines,
            lives_with_models=lives_with_models,
            until_placed=self._until_placed,
            nearest=self._nearest,
            require_models=self._require_models,
        )
        self.learner = FakeLearner()
        self.sync = WeightSync(
            RunConfig(model=ModelSection(path=""), cluster=ClusterSection(colocated=True)),
            cast(Any, self.learner),
            self.fleet,
        )
        self.models_die = False
        self.dispatcher = FakeLedger(self)
        self.fleet.report_to(self.dispatcher)

    def now(self, index: int) -> FakeEngine:
        return cast(FakeEngine, self.fleet[index])

    async def push(self, version: int) -> None:
        await self.sync.push(version=version)

    async def renew(self) -> None:
        """Restart the models, and then the fleet."""
        self.learner.published = None
        await self.fleet.renew()

    def suspect(self, index: int) -> None:
        self.fleet.suspect(index, self.fleet[index], EngineDeadError("no answer"))

    async def settle(self, *, within_s: float = 5_000.0) -> None:
        await asyncio.sleep(within_s)

    async def _until_placed(self, engine: WorkerHandle) -> None:
        """Wait as `Nodes.until_placed` with a limit of 1,000 s."""
        waited_s, self.room_wait_s = min(self.room_wait_s, 1000.0), max(0.0, self.room_wait_s - 1000.0)
        await asyncio.sleep(waited_s)
        if waited_s == 1000.0:
            raise InsufficientResourcesError("no place for it in 1000 s")

    async def _require_models(self) -> None:
        if self.models_die:
            raise ModelDiedError("actor 0: its process died")

    async def _nearest(self, source: WeightSource, engine: WorkerHandle) -> WeightSource:
        assert engine in self.launched
        return source

    def _launch(self, index: int) -> WorkerHandle:
        engine = FakeEngine(index)
        if len(self.launched) >= 2:
            self.prepare(engine)
        self.launched.append(engine)
        return cast(Any, engine)


def played(story: Callable[[World], Coroutine[Any, Any, None]], *, lives_with_models: bool = False) -> World:
    """Play `story` against a started fleet of two that has the weights of version 3."""

    async def main() -> World:
        world = World(lives_with_models=lives_with_models)
        await world.fleet.start()
        await world.push(3)
        async with world.sync.serving_late_engines(), contextlib.aclosing(world.fleet):
            await story(world)
        return world

    return run_in_virtual_time(main())
