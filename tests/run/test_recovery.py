"""Models that die while a run trains: it goes on from its last checkpoint, a few times."""

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.errors import (
    ConfigError,
    InsufficientResourcesError,
    ModelDiedError,
    PeerLostError,
    ResultLostError,
    WorkerDiedError,
    WorkerError,
)
from agentrl.run import recovery
from agentrl.run.recovery import surviving_early_deaths, surviving_model_deaths


class FakeRun:
    """Trains 5 steps with a checkpoint after each; `deaths` are raised in the tries to come."""

    def __init__(self, deaths: list[tuple[int, Exception]]) -> None:
        self.deaths = deaths
        self.step = 0
        self.num_restarts = 0
        self.num_renewals = 0
        self.while_restarting: list[Exception] = []
        self.plan = SimpleNamespace(directory=SimpleNamespace(checkpoints=self))
        self.checkpoints = self
        self.learner = self
        self.engines = self
        self.progress = SimpleNamespace(start_phase=lambda text: None)

    def latest(self) -> Any:
        return SimpleNamespace(step=self.step) if self.step else None

    async def aclose(self) -> None: ...

    async def restart(self) -> None:
        self.num_restarts += 1
        if self.while_restarting:
            raise self.while_restarting.pop(0)

    async def renew(self) -> None:
        assert self.num_restarts > 0
        self.num_renewals += 1

    async def go_on(self) -> None:
        while self.step < 5:
            if self.deaths and self.deaths[0][0] == self.step:
                raise self.deaths.pop(0)[1]
            self.step += 1


def died(at_step: int) -> tuple[int, Exception]:
    return at_step, ModelDiedError("actor 1: its process died")


async def play(*deaths: tuple[int, Exception]) -> FakeRun:
    run: Any = FakeRun(list(deaths))
    await surviving_model_deaths(run, run.go_on)
    return run


async def test_a_run_resumes_from_its_checkpoint_after_every_death():
    run = await play(died(0), died(0), died(2), died(2), died(2), died(4))
    assert (run.step, run.num_restarts) == (5, 6)
    assert run.num_renewals == 6, "engines that live with the models come back with them"


async def test_the_fourth_death_after_the_same_checkpoint_ends_the_run_with_the_reason():
    with pytest.raises(ModelDiedError, match=r"actor 1: its process died. It was the 4th time .* checkpoint of step 2"):
        await play(died(1), died(2), died(2), died(2), died(2))


async def test_a_lost_connection_and_lost_trajectories_are_deaths_too():
    run = await play((2, PeerLostError("connection closed by peer")), (3, ResultLostError("gone with its node")))
    assert (run.step, run.num_restarts) == (5, 2)


async def test_deaths_while_the_models_start_again_are_of_the_death_before_where_they_are_few(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(recovery, "_PAUSE_S", 0.0)
    run: Any = FakeRun([died(2), died(2), died(2)])
    run.while_restarting = [ModelDiedError("actor 0: its process died")] * 2
    await surviving_model_deaths(run, run.go_on)
    assert (run.step, run.num_restarts, run.num_renewals) == (5, 5, 3)
    run = FakeRun([died(2)])
    run.while_restarting = [ModelDiedError("actor 0: its process died")] * 9
    with pytest.raises(ModelDiedError, match="4th time"):
        await surviving_model_deaths(run, run.go_on)
    assert run.num_restarts == 9


async def test_where_there_is_no_room_for_the_models_the_run_ends_with_the_reason():
    run: Any = FakeRun([died(2)])
    run.while_restarting = [InsufficientResourcesError("no place for `actor 1` in 1800 s")]
    with pytest.raises(InsufficientResourcesError, match="no place"):
        await surviving_model_deaths(run, run.go_on)


async def test_an_error_that_would_come_again_ends_the_run_at_once():
    with pytest.raises(WorkerError, match="a bug"):
        await play((1, WorkerError("actor 0: a bug")))


def starts(*errors: Exception | None) -> tuple[list[str], Callable[[], AbstractAsyncContextManager[Any]]]:
    """Return what happens, and starts that fail in turn as `errors` say."""
    events, left = [], list(errors)

    @contextlib.asynccontextmanager
    async def start() -> AsyncIterator[Any]:
        events.append("start")
        try:
            if error := left.pop(0):
                raise error
            yield "run"
        finally:
            events.append("end")

    return events, start


async def test_where_processes_die_at_the_start_all_of_it_ends_and_starts_again():
    events, start = starts(WorkerDiedError("engine 0: its process died"), ModelDiedError("actor 0"), None)
    async with surviving_early_deaths(start) as run:
        assert run == "run"
        assert events == ["start", "end", "start", "end", "start"]
    assert events[5:] == ["end"]


async def test_the_third_death_at_the_start_ends_the_run():
    events, start = starts(*[WorkerDiedError(f"engine {number}: its process died") for number in range(3)])
    with pytest.raises(WorkerDiedError, match="engine 2"):
        async with surviving_early_deaths(start):
            pass
    assert events == ["start", "end"] * 3


@pytest.mark.parametrize(
    "error", [ConfigError("no such model"), WorkerError("a bug"), InsufficientResourcesError("full")]
)
async def test_what_would_come_again_at_the_next_start_ends_the_run_at_once(error: Exception):
    events, start = starts(error)
    with pytest.raises(type(error)):
        async with surviving_early_deaths(start):
            pass
    assert events == ["start", "end"]


async def test_a_death_after_the_start_is_for_others_to_survive():
    events, start = starts(None, None)
    with pytest.raises(ModelDiedError):
        async with surviving_early_deaths(start):
            raise ModelDiedError("actor 0: its process died")
    assert events == ["start", "end"]
