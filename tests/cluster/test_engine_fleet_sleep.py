"""Engines that die while the actor has the memory of those that sleep, in virtual time and without a process."""

import asyncio

from tests.cluster.fake_fleet import World, played


def test_an_engine_that_dies_before_the_others_sleep_is_started_when_they_have_been_woken():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)
        await world.fleet.sleep()
        await world.settle()
        assert not world.now(0).started, "its memory is the actor's"
        assert world.dispatcher.events == ["close 0"]
        await world.push(4)
        await world.settle()
        assert not world.now(1).sleeps

    assert played(story).dispatcher.events == ["close 0", "open 0 with [('w4', 4)]"]


def test_an_engine_that_is_just_starting_sleeps_before_anybody_takes_its_memory():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)
        await asyncio.sleep(0.5)
        await world.fleet.sleep()
        new = world.now(0)
        assert new.started
        await world.settle()
        assert new.sleeps
        assert world.dispatcher.events == ["close 0"]
        await world.push(4)

    assert played(story).dispatcher.events == ["close 0", "open 0 with [('w4', 4)]"]


def test_an_engine_that_was_suspected_before_the_others_sleep_gives_up_its_memory_too():
    async def story(world: World) -> None:
        world.suspect(0)
        await world.fleet.sleep()
        await world.settle()
        assert world.now(0).sleeps
        assert world.dispatcher.events == ["close 0"]
        await world.push(4)

    world = played(story)
    assert world.dispatcher.events == ["close 0", "open 0 with [('w4', 4)]"]
    assert len(world.launched) == 2
