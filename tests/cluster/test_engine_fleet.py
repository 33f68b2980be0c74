"""Engines that die, hang and come back, in virtual time and without a process."""

import asyncio
import itertools
import math
from typing import Any, cast

import pytest

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.errors import EngineError, InsufficientResourcesError, WorkerDiedError
from agentrl.simulation.virtual_time import run_in_virtual_time
from tests.cluster.fake_fleet import GONE, FakeEngine, World, played, source


def test_a_dead_engine_is_closed_at_once_and_opened_again_in_a_new_process_with_the_current_weights():
    async def story(world: World) -> None:
        dead = world.now(0)
        dead.dies = True
        world.suspect(0)
        assert world.dispatcher.events == ["close 0"]
        await world.settle()
        assert world.now(0) is not dead
        assert world.fleet.take_num_deaths() == 1

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w3', 3)]"]
    assert len(world.launched) == 3


def test_a_new_process_is_given_work_for_the_memory_that_it_has_itself():
    async def story(world: World) -> None:
        world.prepare = lambda engine: setattr(engine, "kv_tokens", 640)
        world.now(0).dies = True
        world.suspect(0)
        world.suspect(1)
        await world.settle()

    assert played(story).dispatcher.kv_tokens == {0: 640, 1: 1000}


def test_an_engine_that_answers_is_opened_as_it_is():
    async def story(world: World) -> None:
        world.suspect(1)
        await world.settle()
        assert world.fleet.take_num_deaths() == 0

    world = played(story)
    assert world.dispatcher.events == ["close 1", "open 1 with [('w3', 3)]"]
    assert len(world.launched) == 2


def test_an_engine_that_is_suspected_again_while_it_is_opened_is_not_opened_before_its_new_process_works():
    async def story(world: World) -> None:
        world.now(0).stats_s = 5.0
        world.suspect(0)
        await asyncio.sleep(8)  # alive, and asked for its memory again
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w3', 3)]"]
    assert len(world.launched) == 3


def test_a_bug_while_late_engines_are_served_fails_all_that_waits_for_them():
    async def story(world: World) -> None:
        world.learner.published = cast(Any, object())
        world.suspect(0)
        await world.settle()
        assert "a bug: AttributeError" in str(world.dispatcher.failure)

    played(story)


def test_an_engine_that_hangs_is_killed_and_replaced():
    async def story(world: World) -> None:
        hanging = world.now(0)
        hanging.hangs = True
        world.suspect(0)
        await world.settle(within_s=40)
        assert hanging.dies
        assert world.dispatcher.closed == set()

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

    assert played(story).dispatcher.events == ["close 0", "open 0 with [('w3', 3)]"]


def test_a_push_goes_on_without_a_dead_engine_and_does_not_leave_it_behind():
    async def story(world: World) -> None:
        world.now(0).dies = True
        await world.push(4)
        assert world.now(1).loaded[-1] == ("w4", 4)
        assert world.dispatcher.events == ["close 0"]
        await world.push(5)  # while it is being started
        await world.settle()

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w5', 5)]"]
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
        assert world.dispatcher.events == []

    played(story)


def test_an_engine_that_refuses_the_weights_does_not_interrupt_the_others():
    async def story(world: World) -> None:
        world.now(1).refuses_weights = True
        world.now(0).load_s = 50
        with pytest.raises(EngineError, match="not the model's weights"):
            await world.push(4)
        assert world.now(0).loaded[-1] == ("w4", 4)

    played(story)


def test_a_fleet_that_failed_takes_no_weights():
    async def story(world: World) -> None:
        world.fleet.fail(EngineError("the weights are gone"))
        with pytest.raises(EngineError, match="the weights are gone"):
            await world.fleet.load(source("w4"))
        assert world.now(0).loaded == [("w3", 3)]

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

    assert played(story).dispatcher.closed == set()


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
    assert world.dispatcher.closed == {0}
    assert world.dispatcher.failure is None
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

    failure = played(story).dispatcher.failure
    assert failure is not None
    assert "the last one of: it does not start" in str(failure)
    assert "`ray_logs/`" in str(failure)


def test_deaths_long_apart_are_not_counted_together():
    async def story(world: World) -> None:
        for _ in range(12):
            world.now(0).dies = True
            world.suspect(0)
            await world.settle()

    world = played(story)
    assert world.dispatcher.closed == set()
    assert len(world.launched) == 2 + 12


def test_an_engine_that_was_never_given_weights_is_opened_without():
    async def main() -> World:
        world = World()
        await world.fleet.start()
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        return world

    assert run_in_virtual_time(main()).dispatcher.events == ["close 0", "open 0 with []"]


def test_nothing_is_started_after_the_end():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)

    assert len(played(story).launched) == 2


def test_an_engine_waits_for_room_as_long_as_others_work_and_that_is_no_death():
    async def story(world: World) -> None:
        world.room_wait_s = 4500.0
        world.now(0).dies = True
        world.suspect(0)
        await world.settle(within_s=4000)
        assert world.dispatcher.closed == {0}
        await world.push(4)
        await world.settle(within_s=1000)
        assert world.dispatcher.closed == set()
        assert world.now(0).loaded[-1][1] == 4
        assert world.fleet.take_num_deaths() == 1

    assert played(story).dispatcher.failure is None


def test_where_no_engine_has_room_the_run_ends_with_the_reason():
    async def story(world: World) -> None:
        world.room_wait_s = 4500.0
        for index in range(2):
            world.now(index).dies = True
            world.suspect(index)
        await world.settle()

    failure = played(story).dispatcher.failure
    assert isinstance(failure, InsufficientResourcesError)
    assert "no place for it" in str(failure)


def test_an_engine_that_hangs_in_its_first_start_is_treated_as_dead():
    async def story() -> None:
        fleet = EngineFleet(lambda index: cast(Any, FakeEngine(index, start_s=math.inf)), num_engines=2)
        with pytest.raises(WorkerDiedError, match="has not started in 1800 s, and is treated as dead"):
            await fleet.start()

    run_in_virtual_time(story())
