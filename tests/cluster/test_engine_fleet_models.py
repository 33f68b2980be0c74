"""Engines whose processes are those of the models, or die with them, in virtual time and without a process."""

import pytest

from agentrl.errors import ModelDiedError
from tests.cluster.fake_fleet import GONE, FakeEngine, World, played


def test_the_death_of_an_engine_in_a_process_of_the_models_is_theirs():
    async def story(world: World) -> None:
        world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        assert isinstance(world.dispatcher.failure, ModelDiedError)
        assert "engine 0, in a process of the models" in str(world.dispatcher.failure)
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
        await world.renew()
        assert world.dispatcher.failure is None
        assert world.dispatcher.closed == {0, 1}
        world.fleet.suspect(0, old, GONE)  # a late report about the old process
        await world.push(2)
        await world.settle()

    world = played(story, lives_with_models=True)
    assert world.dispatcher.events[-3:] == ["recover", "open 0 with [('w2', 2)]", "open 1 with [('w2', 2)]"]
    assert len(world.launched) == 4


def test_an_engine_that_dies_while_it_comes_back_is_a_death_of_the_models_again():
    async def story(world: World) -> None:
        def dead(engine: FakeEngine) -> None:
            engine.dies = True

        world.prepare = dead
        with pytest.raises(ModelDiedError):
            await world.renew()

    assert played(story, lives_with_models=True).dispatcher.closed == {0, 1}


def test_an_engine_that_goes_with_the_models_waits_for_them_and_the_others_stay():
    async def story(world: World) -> None:
        world.models_die = world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        assert isinstance(world.dispatcher.failure, ModelDiedError)
        assert len(world.launched) == 2, "nobody has weights for a new one"
        world.models_die = False
        await world.renew()
        assert (world.dispatcher.failure, world.dispatcher.closed) == (None, {0})
        await world.push(4)

    world = played(story)
    assert world.dispatcher.events[-2:] == ["recover", "open 0 with [('w4', 4)]"]
    assert [engine.index for engine in world.launched] == [0, 1, 0]
    assert world.now(1).loaded == [("w3", 3), ("w4", 4)]


def test_an_engine_of_its_own_that_dies_while_it_comes_back_is_started_once_more_with_the_others():
    async def story(world: World) -> None:
        def dead(engine: FakeEngine) -> None:
            engine.dies = True

        world.models_die = world.now(0).dies = True
        world.suspect(0)
        await world.settle()
        world.models_die, world.prepare = False, dead
        with pytest.raises(ModelDiedError):
            await world.renew()
        world.prepare = lambda engine: None
        await world.renew()
        await world.push(4)

    world = played(story)
    assert world.dispatcher.events[-2:] == ["recover", "open 0 with [('w4', 4)]"]
    assert [engine.index for engine in world.launched] == [0, 1, 0, 0]
    assert world.now(0).started


def test_engines_with_processes_of_their_own_stay_when_models_start_again():
    async def story(world: World) -> None:
        await world.renew()

    world = played(story)
    assert (len(world.launched), world.dispatcher.events) == (2, [])
