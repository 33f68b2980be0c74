"""Engines that die, hang and come back, in virtual time and without a process."""

import asyncio
import itertools
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import AgentRLError, EngineDeadError, EngineError, ModelDiedError, NoRoomError, WorkerDiedError
from agentrl.runners.virtual_time import run_in_virtual_time
from agentrl.weight_sync.base import Transport, WeightSource

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
    started: bool = False
    loaded: list[tuple[str, int]] = field(default_factory=list)

    async def start(self) -> None:
        await asyncio.sleep(self.start_s)
        await self._answer()
        if self.start_fails:
            raise EngineError("it does not start")
        self.started = True

    async def stats(self) -> None:
        await self._answer()

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
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
        self.is_empty = asyncio.Event()
        self.events: list[str] = []
        self.failure: AgentRLError | None = None

    def close(self, engine: int) -> None:
        self.closed.add(engine)
        self.events.append(f"close {engine}")

    def reopen(self, engine: int) -> None:
        self.closed.discard(engine)
        now = self.world.now(engine)
        self.events.append(f"open {engine} with {now.loaded[-1:]}")
        assert now.started
        assert not now.dies

    async def emptied(self, engine: int) -> None:
        await self.is_empty.wait()

    def fail(self, error: AgentRLError) -> None:
        self.failure = error

    def recover(self) -> None:
        self.failure = None
        self.events.append("recover")


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
        self.models_die = False
        self.ledger = FakeLedger(self)
        self.fleet.report_to(self.ledger)

    def now(self, index: int) -> FakeEngine:
        return cast(FakeEngine, self.fleet[index])

    async def push(self, version: int) -> None:
        async def publish(engines: Sequence[str]) -> WeightSource:
            return source(f"w{version}")

        await self.fleet.push(publish, version=version)

    def suspect(self, index: int) -> None:
        self.fleet.suspect(index, self.fleet[index], EngineDeadError("no answer"))

    async def settle(self, *, within_s: float = 5_000.0) -> None:
        await asyncio.sleep(within_s)

    async def _until_placed(self, engine: WorkerHandle) -> None:
        """As `Nodes.until_placed` with 1,000 s of patience."""
        waited_s, self.room_wait_s = min(self.room_wait_s, 1000.0), max(0.0, self.room_wait_s - 1000.0)
        await asyncio.sleep(waited_s)
        if waited_s == 1000.0:
            raise NoRoomError("no place for it in 1000 s")

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
        await story(world)
        await world.fleet.aclose()
        return world

    return run_in_virtual_time(main())


def test_a_dead_engine_is_closed_at_once_and_opened_again_in_a_new_process_with_the_current_weights():
    async def story(world: World) -> None:
        dead = world.now(0)
        dead.dies = True
        world.suspect(0)
        assert world.ledger.events == ["close 0"]
        await world.settle()
        assert world.now(0) is not dead
        assert world.fleet.take_num_deaths() == 1

    world = played(story)
    assert world.ledger.events == ["close 0", "open 0 with [('w3', 3)]"]
    assert len(world.launched) == 3


def test_an_engine_that_answers_is_opened_as_it_is():
    async def story(world: World) -> None:
        world.suspect(1)
        await world.settle()
        assert world.fleet.take_num_deaths() == 0

    world = played(story)
    assert world.ledger.events == ["close 1", "open 1 with [('w3', 3)]"]
    assert len(world.launched) == 2


def test_an_engine_that_hangs_is_killed_and_replaced():
    async def story(world: World) -> None:
        hanging = world.now(0)
        hanging.hangs = True
        world.suspect(0)
        await world.settle(within_s=40)
        assert hanging.dies
        assert world.ledger.closed == set()

    assert len(played(story).launched) == 3


def test_late_reports_about_a_process_that_is_replaced_change_nothing():
    async def story(world: World) -> None:
        dead = world.fleet[0]
        world.now(0).dies = True
        for _ in range(3):
            world.fleet.suspect(0, dead, GONE)
        await world.settle()
        world.fleet.suspect(0, dead, GONE)
        await world.settle()

    assert played(story).ledger.events == ["close 0", "open 0 with [('w3', 3)]"]


def test_a_push_goes_on_without_a_dead_engine_and_does_not_leave_it_behind():
    async def story(world: World) -> None:
        world.now(0).dies = True
        await world.push(4)
        assert world.now(1).loaded[-1] == ("w4", 4)
        assert world.ledger.events == ["close 0"]
        await world.push(5)  # while it is being started
        await world.settle()

    world = played(story)
    assert world.ledger.events == ["close 0", "open 0 with [('w5', 5)]"]
    assert world.launched[2].loaded == [("w5", 5)]


def test_weights_are_not_replaced_while_a_new_engine_reads_them():
    async def story(world: World) -> None:
        def slow(engine: FakeEngine) -> None:
            engine.load_s = 50

        world.prepare = slow
        world.now(0).dies = True
        world.suspect(0)
        await asyncio.sleep(10)  # the new one has begun to read
        await world.push(4)
        assert world.now(0).loaded == [("w3", 3), ("w4", 4)]

    played(story)


def test_an_engine_that_lives_and_refuses_the_weights_ends_the_run():
    async def story(world: World) -> None:
        world.now(1).refuses_weights = True
        with pytest.raises(EngineError, match="not the model's weights"):
            await world.push(4)
        assert world.ledger.events == []

    played(story)


def test_an_engine_that_does_not_start_is_tried_again_later_each_time():
    async def story(world: World) -> None:
        tries: list[float] = []

        def fail_twice(engine: FakeEngine) -> None:
            tries.append(asyncio.get_running_loop().time())
            engine.start_fails = len(tries) < 4

        world.prepare = fail_twice
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        waits = [later - earlier for earlier, later in itertools.pairwise(tries)]
        assert waits == [1 + 1, 2 + 1, 4 + 1], "the wait, and the second in which it did not start"

    assert played(story).ledger.closed == set()


def test_an_engine_that_dies_again_and_again_is_given_up_and_the_others_go_on():
    async def story(world: World) -> None:
        def broken(engine: FakeEngine) -> None:
            engine.start_fails = engine.index == 0

        world.prepare = broken
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        world.suspect(0)
        await world.push(4)
        assert world.now(1).loaded[-1] == ("w4", 4)

    world = played(story)
    assert world.ledger.closed == {0}
    assert world.ledger.failure is None
    assert len(world.launched) == 2 + 5


def test_the_end_of_the_last_engine_is_an_error_that_says_where_to_look():
    async def story(world: World) -> None:
        def broken(engine: FakeEngine) -> None:
            engine.start_fails = True

        world.prepare = broken
        for index in (0, 1):
            world.now(index).dies = True
            world.suspect(index)
        await world.settle()
        with pytest.raises(EngineError, match="all 2 died"):
            await world.push(4)

    failure = played(story).ledger.failure
    assert failure is not None
    assert "the last died of: it does not start" in str(failure)
    assert "`ray_logs/`" in str(failure)


def test_deaths_long_apart_are_not_counted_together():
    async def story(world: World) -> None:
        for _ in range(12):
            world.now(0).dies = True
            world.suspect(0)
            await world.settle()

    world = played(story)
    assert world.ledger.closed == set()
    assert len(world.launched) == 2 + 12


def test_an_engine_that_was_never_given_weights_is_opened_without():
    async def main() -> World:
        world = World()
        await world.fleet.start()
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        return world

    assert run_in_virtual_time(main()).ledger.events == ["close 0", "open 0 with []"]


def test_nothing_is_started_after_the_end():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)

    assert len(played(story).launched) == 2


def test_a_draining_engine_ends_what_it_has_with_new_weights_and_goes_on_in_another_process():
    async def story(world: World) -> None:
        old = world.now(0)
        world.fleet.drain(0, within_s=100)
        assert world.ledger.events == ["close 0"]
        await world.push(4)
        assert old.loaded[-1] == ("w4", 4)
        await asyncio.sleep(50)
        assert not old.dies
        world.ledger.is_empty.set()
        await asyncio.sleep(10)
        assert old.dies
        assert world.now(0) is not old
        assert world.fleet.take_num_deaths() == 0

    world = played(story)
    assert world.ledger.events == ["close 0", "open 0 with [('w4', 4)]"]


def test_what_a_draining_engine_does_not_end_in_time_is_moved():
    async def story(world: World) -> None:
        old = world.now(0)
        world.fleet.drain(0, within_s=100)
        world.fleet.drain(0, within_s=1)  # said twice, it is the same
        world.suspect(0)
        await asyncio.sleep(99)
        assert not old.dies
        await asyncio.sleep(11)
        assert old.dies, "its callers get a WorkerDiedError, and begin again elsewhere"

    assert played(story).ledger.events == ["close 0", "open 0 with [('w3', 3)]"]


def test_an_engine_that_dies_while_it_drains_is_replaced_once():
    async def story(world: World) -> None:
        world.fleet.drain(0, within_s=100)
        world.now(0).dies = True
        world.suspect(0)
        await world.push(4)
        world.ledger.is_empty.set()
        await world.settle()

    world = played(story)
    assert world.ledger.events == ["close 0", "open 0 with [('w4', 4)]"]
    assert len(world.launched) == 3


def test_a_drained_engine_that_does_not_start_elsewhere_is_tried_again():
    async def story(world: World) -> None:
        tries = itertools.count()

        def fail_once(engine: FakeEngine) -> None:
            engine.start_fails = next(tries) == 0

        world.prepare = fail_once
        world.ledger.is_empty.set()
        world.fleet.drain(0, within_s=100)
        await world.settle()
        assert world.fleet.take_num_deaths() == 1

    assert played(story).ledger.closed == set()


def test_the_death_of_an_engine_in_a_process_of_the_models_is_theirs():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        assert isinstance(world.ledger.failure, ModelDiedError)
        assert "engine 0, in a process of the models" in str(world.ledger.failure)
        with pytest.raises(ModelDiedError):
            await world.push(4)
        assert world.fleet.take_num_deaths() == 1

    assert len(played(story, lives_with_models=True).launched) == 2, "it is not started without the models"


def test_engines_that_come_back_with_the_models_get_work_when_they_have_weights():
    async def story(world: World) -> None:
        old = world.fleet[0]
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        await world.fleet.renew()
        assert world.ledger.failure is None
        assert world.ledger.closed == {0, 1}
        world.fleet.suspect(0, old, GONE)  # a late report about the old process
        await world.push(2)
        await world.settle()

    world = played(story, lives_with_models=True)
    assert world.ledger.events[-3:] == ["recover", "open 0 with [('w2', 2)]", "open 1 with [('w2', 2)]"]
    assert len(world.launched) == 4


def test_an_engine_that_dies_while_it_comes_back_is_a_death_of_the_models_again():
    async def story(world: World) -> None:
        def dead(engine: FakeEngine) -> None:
            engine.dies = True

        world.prepare = dead
        with pytest.raises(ModelDiedError):
            await world.fleet.renew()

    assert played(story, lives_with_models=True).ledger.closed == {0, 1}


def test_an_engine_that_goes_with_the_models_waits_for_them_and_the_others_stay():
    async def story(world: World) -> None:
        world.models_die = world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        assert isinstance(world.ledger.failure, ModelDiedError)
        assert len(world.launched) == 2, "nobody has weights for a new one"
        world.models_die = False
        await world.fleet.renew()
        assert (world.ledger.failure, world.ledger.closed) == (None, {0})
        await world.push(4)

    world = played(story)
    assert world.ledger.events[-2:] == ["recover", "open 0 with [('w4', 4)]"]
    assert [engine.index for engine in world.launched] == [0, 1, 0]
    assert world.now(1).loaded == [("w3", 3), ("w4", 4)]


def test_engines_with_processes_of_their_own_stay_when_models_start_again():
    async def story(world: World) -> None:
        await world.fleet.renew()

    world = played(story)
    assert (len(world.launched), world.ledger.events) == (2, [])


def test_an_engine_waits_for_room_as_long_as_others_work_and_that_is_no_death():
    async def story(world: World) -> None:
        world.room_wait_s = 4500.0
        world.now(0).dies = True
        world.suspect(0)
        await world.settle(within_s=4000)
        assert world.ledger.closed == {0}
        await world.push(4)
        await world.settle(within_s=1000)
        assert world.ledger.closed == set()
        assert world.now(0).loaded[-1][1] == 4
        assert world.fleet.take_num_deaths() == 1

    assert played(story).ledger.failure is None


def test_where_no_engine_has_room_the_run_ends_with_the_reason():
    async def story(world: World) -> None:
        world.room_wait_s = 4500.0
        for index in range(2):
            world.now(index).dies = True
            world.suspect(index)
        await world.settle()

    failure = played(story).ledger.failure
    assert isinstance(failure, NoRoomError)
    assert "no place for it" in str(failure)
