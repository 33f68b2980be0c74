"""Engines whose node is about to leave, in virtual time and without a process."""

import asyncio
import itertools

from tests.cluster.fake_fleet import FakeEngine, World, played


def test_a_draining_engine_ends_what_it_has_with_new_weights_and_goes_on_in_another_process():
    async def story(world: World) -> None:
        old = world.now(0)
        world.fleet.drain(0, within_s=100)
        assert world.dispatcher.events == ["close 0"]
        await world.push(4)
        assert old.loaded[-1] == ("w4", 4)
        await asyncio.sleep(50)
        assert not old.dies
        world.dispatcher.is_empty.set()
        await asyncio.sleep(10)
        assert old.dies
        assert world.now(0) is not old
        assert world.fleet.take_num_deaths() == 0

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w4', 4)]"]


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

    assert played(story).dispatcher.events == ["close 0", "open 0 with [('w3', 3)]"]


def test_an_engine_that_dies_while_it_drains_is_replaced_once():
    async def story(world: World) -> None:
        world.fleet.drain(0, within_s=100)
        world.now(0).dies = True
        world.suspect(0)
        await world.push(4)
        world.dispatcher.is_empty.set()
        await world.settle()

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w4', 4)]"]
    assert len(world.launched) == 3


def test_a_drained_engine_that_does_not_start_elsewhere_is_tried_again():
    async def story(world: World) -> None:
        tries = itertools.count()

        def fail_once(engine: FakeEngine) -> None:
            engine.start_fails = next(tries) == 0

        world.prepare = fail_once
        world.dispatcher.is_empty.set()
        world.fleet.drain(0, within_s=100)
        await world.settle()
        assert world.fleet.take_num_deaths() == 1

    assert played(story).dispatcher.closed == set()
