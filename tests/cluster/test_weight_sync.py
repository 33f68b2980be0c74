"""Order of the calls to actor and engines in a weight sync, in virtual time and without a process."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast

import pytest

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.learner import Learner, transport_of
from agentrl.cluster.weight_sync import WeightSync
from agentrl.config.schema.cluster import ClusterSection, PoolSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.config.validation.layout import layout_problems, transport_problems
from agentrl.engine.base import EngineStats
from agentrl.errors import ModelDiedError, WorkerDiedError, WorkerError
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.weight_sync.base import Transport, WeightSource
from tests.fakes import idle_stats

MODEL = ModelSection(path="")


class RecordingEngine:
    """One process of an engine."""

    def __init__(self, index: int, calls: list[str]) -> None:
        self.index = index
        self.calls = calls
        self.dies = False
        self.peak = 100.0 + index

    async def start(self) -> None: ...

    async def stats(self) -> EngineStats:
        self._answer()
        return idle_stats()

    async def sleep(self) -> None:
        self._note("sleep")

    async def wake(self, tags: tuple[str, ...]) -> None:
        self._note(f"wake {'+'.join(tags)}")

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        self._note(f"load {version}")
        assert source.receiver.startswith(f"engine {self.index}")

    async def take_peak_memory(self) -> float:
        self._answer()
        return self.peak

    def kill(self) -> None:
        self.dies = True

    def _note(self, call: str) -> None:
        self._answer()
        self.calls.append(f"engine {self.index}: {call}")

    def _answer(self) -> None:
        if self.dies:
            raise WorkerDiedError(f"engine {self.index}: its process died")


class RecordingActor:
    """The group of a learner's actor, with a single rank."""

    name = "actor"

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.ranks = [self]
        self.peak = 5.0
        self.sends: Callable[[], Awaitable[None]] = partial(asyncio.sleep, 10)

    async def all(self, _call: str, _actor: str, method: str, *args: Any) -> list[Any]:
        return [await getattr(self, method)(*args)]

    async def first(self, method: str) -> str:
        return "this node"

    async def publish_weights(self, transport: Transport, receivers: list[str]) -> WeightSource:
        self.calls.append(f"actor: publish to {', '.join(receivers)}")
        return WeightSource(
            transport=transport, address="", size_bytes=0, tensors=(), receivers=tuple(receivers), publisher="actor"
        )

    async def send_weights(self, source: WeightSource) -> str | None:
        self.calls.append("actor: send")
        await self.sends()
        return None

    async def take_peak_memory(self) -> float:
        self.peak += 1
        return self.peak


class World:
    def __init__(self, *, num_engines: int = 1, **cluster: Any) -> None:
        self.calls: list[str] = []
        self.actor = RecordingActor(self.calls)
        self.engines: list[RecordingEngine] = []
        self.fleet = EngineFleet(self._launch, num_engines=num_engines)
        config = RunConfig(model=MODEL, cluster=ClusterSection(**cluster))
        self.learner = Learner(config, lambda: [cast(Any, self.actor)])
        self.sync = WeightSync(config, self.learner, self.fleet)

    def _launch(self, index: int) -> Any:
        self.engines.append(RecordingEngine(index, self.calls))
        return self.engines[-1]

    async def step(self, version: int) -> None:
        await self.sync.make_room()
        self.calls.append("actor: update")
        await self.sync.push(version=version)

    def taken_calls(self) -> list[str]:
        taken = list(self.calls)
        self.calls.clear()
        return taken


def test_colocated_engines_sleep_while_the_actor_trains_and_wake_with_the_new_weights():
    async def story() -> None:
        world = World(colocated=True)
        await world.sync.push(version=0)
        assert world.taken_calls() == ["actor: publish to engine 0/0", "engine 0: load 0"]
        await world.step(1)
        assert world.taken_calls() == [
            "engine 0: sleep",
            "actor: update",
            "actor: publish to engine 0/0",
            "engine 0: wake weights",
            "engine 0: load 1",
            "engine 0: wake kv_cache",
        ]

    run_in_virtual_time(story())


def test_engines_with_memory_of_their_own_stay_awake():
    async def story() -> None:
        world = World(num_engines=2)
        await world.step(1)
        assert world.taken_calls() == [
            "actor: update",
            "actor: publish to engine 0/0, engine 1/0",
            "engine 0: load 1",
            "engine 1: load 1",
        ]

    run_in_virtual_time(story())


def test_an_engine_that_dies_in_its_sleep_is_started_again_awake():
    async def story() -> None:
        world = World(num_engines=2, colocated=True)
        await world.sync.push(version=0)
        world.engines[1].dies = True
        await world.sync.make_room()
        await asyncio.sleep(100)
        assert len(world.engines) == 3
        world.taken_calls()
        async with world.sync.serving_late_engines():
            await world.sync.push(version=1)
            await asyncio.sleep(1)
        assert [call for call in world.taken_calls() if call.startswith("engine 1")] == ["engine 1: load 1"]
        await world.fleet.aclose()

    run_in_virtual_time(story())


def test_a_stream_is_sent_while_it_is_taken_and_again_for_an_engine_that_comes_later():
    async def story() -> None:
        world = World(num_engines=2, weight_transport="broadcast")
        await world.sync.push(version=1)
        world.taken_calls()
        world.engines[1].dies = True
        await world.sync.push(version=2)
        async with world.sync.serving_late_engines():
            await asyncio.sleep(100)
        calls = world.taken_calls()
        late = calls.index("actor: publish to engine 1, started 2 times/0")
        assert calls[0] == "actor: publish to engine 0/0, engine 1/0"
        assert sorted(calls[1:late]) == ["actor: send", "engine 0: load 2"]
        assert sorted(calls[late + 1 :]) == ["actor: send", "engine 1: load 2"]
        await world.fleet.aclose()

    run_in_virtual_time(story())


def test_a_stream_is_not_sent_again_to_a_suspected_engine_that_has_its_weights():
    async def story() -> None:
        world = World(weight_transport="broadcast")
        await world.sync.push(version=1)
        world.taken_calls()
        async with world.sync.serving_late_engines():
            world.fleet.suspect(0, world.fleet[0], WorkerDiedError("no answer"))
            await asyncio.sleep(100)
        assert world.taken_calls() == []
        assert world.fleet.receivers(late=True) == [], "it is open"
        await world.fleet.aclose()

    run_in_virtual_time(story())


def test_an_actor_that_dies_while_it_sends_is_no_death_of_the_one_that_comes_after_it():
    async def story() -> None:
        world = World(weight_transport="broadcast")
        sends = world.actor.sends

        async def dies() -> None:
            raise ModelDiedError("actor 0: its process died")

        world.actor.sends = dies
        with pytest.raises(ModelDiedError):
            await world.sync.push(version=1)
        world.actor.sends = sends
        await world.sync.push(version=1)
        await world.fleet.aclose()

    run_in_virtual_time(story())


def test_an_actor_that_does_not_gather_its_weights_ends_the_push():
    async def story() -> None:
        world = World()

        async def never(transport: Transport, receivers: list[str]) -> WeightSource:
            await asyncio.sleep(1e6)
            raise AssertionError

        world.actor.publish_weights = never  # type: ignore[method-assign]
        with pytest.raises(WorkerError, match="version 1: the actor did not gather its weights in 300 s"):
            await world.sync.push(version=1)

    run_in_virtual_time(story())


def test_the_most_memory_is_reported_by_phase_of_the_process_that_had_most():
    async def story() -> dict[str, float]:
        world = World(num_engines=2)
        await world.step(1)
        return world.sync.metrics()

    assert run_in_virtual_time(story()) == {
        "memory/actor_rollout_bytes_max": 6.0,
        "memory/actor_update_bytes_max": 7.0,
        "memory/actor_weight_sync_bytes_max": 8.0,
        "memory/engine_rollout_bytes_max": 101.0,
        "memory/engine_update_bytes_max": 101.0,
        "memory/engine_weight_sync_bytes_max": 101.0,
    }


def test_roles_with_processes_of_their_own_have_memory_of_their_own_and_those_in_one_process_have_it_once():
    async def story() -> dict[str, float]:
        world = World()
        critic: Any = RecordingActor([])
        critic.name = "critic_reward"
        world.actor.name = "actor_ref"
        world.learner = Learner(RunConfig(model=MODEL), lambda: [cast(Any, world.actor), critic])
        world.sync = WeightSync(RunConfig(model=MODEL), world.learner, world.fleet)
        await world.step(1)
        return world.sync.metrics()

    peaks = run_in_virtual_time(story())
    assert {name: peak for name, peak in peaks.items() if "engine" not in name} == {
        "memory/actor_rollout_bytes_max": 6.0,
        "memory/actor_update_bytes_max": 7.0,
        "memory/actor_weight_sync_bytes_max": 8.0,
        "memory/critic_reward_rollout_bytes_max": 6.0,
        "memory/critic_reward_update_bytes_max": 7.0,
        "memory/critic_reward_weight_sync_bytes_max": 8.0,
    }


def test_an_engine_that_is_gone_has_no_peak():
    async def story() -> float:
        world = World()
        world.engines[0].dies = True
        await world.sync.make_room()
        return world.sync.metrics()["memory/engine_rollout_bytes_max"]

    assert math.isnan(run_in_virtual_time(story()))


def together(num_processes: int, **cluster: Any) -> RunConfig:
    pools, roles = {"all": PoolSection(num_processes=num_processes)}, {"actor_rollout": "all"}
    return RunConfig(
        model=MODEL,
        actor=ActorSection(num_workers=num_processes),
        cluster=ClusterSection(pools=pools, roles=roles, **cluster),
    )


def test_weights_do_not_travel_where_the_only_rank_has_the_engine_in_its_process():
    assert transport_of(together(1)) == Transport.IN_PROCESS
    assert transport_of(together(2)) == Transport.SHARED_MEMORY
    assert (
        transport_of(RunConfig(model=MODEL, cluster=ClusterSection(weight_transport="cuda_ipc"))) == Transport.CUDA_IPC
    )


@pytest.mark.parametrize("transport", ["broadcast", "cuda_ipc"])
def test_a_transport_between_processes_is_refused_for_engines_in_the_actors_own(transport: Any):
    problems = layout_problems(together(2, weight_transport=transport))
    assert any("leave it out" in problem and f"`{transport}`" in problem for problem in problems)


@pytest.mark.parametrize(
    ("transport", "num_gpus", "words"),
    [
        ("cuda_ipc", 0.0, "not both have GPUs"),
        ("cuda_ipc", 1.0, "each has others"),
        ("cuda_ipc", 0.5, None),
        ("broadcast", 0.5, "they share them"),
        ("broadcast", 0.0, None),
        ("broadcast", 1.0, None),
    ],
)
def test_a_transport_that_does_not_fit_the_gpus_is_a_problem(transport: Any, num_gpus: float, words: str | None):
    config = RunConfig(model=MODEL, cluster=ClusterSection(weight_transport=transport))
    has_gpu = num_gpus > 0
    found = transport_problems(config, actor_has_gpu=has_gpu, engine_has_gpu=has_gpu, shared=0 < num_gpus < 1)
    assert [words in problem for problem in found] == [True] if words else found == []


def test_engines_that_sleep_during_updates_cannot_roll_out_ahead():
    config = RunConfig(model=MODEL, cluster=ClusterSection(colocated=True))
    assert not any("colocated" in problem for problem in layout_problems(config))
    ahead = config.model_copy(update={"rollout": RolloutSection(max_staleness=1)})
    assert any("`cluster.colocated`" in problem for problem in layout_problems(ahead))
