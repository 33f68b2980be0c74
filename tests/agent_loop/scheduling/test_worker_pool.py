"""Workers that die and come back, in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from agentrl.agent_loop.scheduling.worker_pool import LoopWorkers
from agentrl.errors import ToolError, WorkerDiedError, WorkerError
from agentrl.simulation.virtual_time import run_in_virtual_time


class FakeWorker:
    """Dead for `away_s` from now on."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.back_at = 0.0
        self.hangs = False
        self.is_gone = False
        self.events: list[str] = []

    def die(self, away_s: float) -> None:
        self.back_at = asyncio.get_running_loop().time() + away_s

    async def clean_up(self) -> None:
        self.events.append("cleaning")
        await asyncio.sleep(1)
        self.events.append("clean")

    async def ping(self) -> None:
        if self.hangs:
            await asyncio.sleep(1e6)
        if self.is_gone:
            raise WorkerDiedError(f"{self.name}: its process died")

    def end_for_restart(self) -> None:
        self.events.append("ended")
        self.hangs = False

    async def start(self) -> None:
        self.events.append("asked")
        if asyncio.get_running_loop().time() < self.back_at:
            raise WorkerDiedError(f"{self.name}: its process died")


def played(story: Callable[[LoopWorkers, list[FakeWorker]], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        fakes = [FakeWorker("agent_loop 0"), FakeWorker("agent_loop 1")]
        handles: list[Any] = list(fakes)
        workers = LoopWorkers(handles, clean_up=lambda handle: handle.clean_up(), max_wait_s=300)
        await story(workers, fakes)
        await workers.aclose()

    run_in_virtual_time(main())


def test_a_worker_that_does_not_start_in_time_is_given_up():
    class SlowWorker(FakeWorker):
        async def start(self) -> None:
            await asyncio.sleep(1900)

    async def main() -> None:
        worker: Any = SlowWorker("agent_loop 0")
        workers = LoopWorkers([worker], clean_up=lambda _: worker.clean_up(), max_wait_s=1800)
        workers.note_death(worker)
        with pytest.raises(WorkerError, match="none came back"):
            await workers.next()
        await workers.aclose()

    run_in_virtual_time(main())


def die(workers: LoopWorkers, fake: Any, away_s: float) -> None:
    fake.die(away_s)
    workers.note_death(fake)
    workers.note_death(fake)  # by all that were there


def test_workers_get_work_in_turn():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        assert [await workers.next() for _ in range(4)] == [*fakes, *fakes]

    played(story)


def test_a_dead_worker_gets_nothing_until_it_is_back():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        die(workers, fakes[0], 10)
        assert {await workers.next() for _ in range(4)} == {fakes[1]}
        assert workers.living == [fakes[1]]
        await asyncio.sleep(20)
        assert {await workers.next() for _ in range(4)} == set(fakes)

    played(story)


def test_a_worker_that_says_nothing_is_ended_and_gets_work_again_when_it_is_back():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        assert await workers.next() is fakes[0]
        fakes[0].hangs = True
        await asyncio.sleep(88)
        assert fakes[0].events == [], "it may yet answer"
        await asyncio.sleep(3)
        assert fakes[0].events[0] == "ended"
        assert workers.living == [fakes[1]]
        await asyncio.sleep(10)
        assert fakes[0].events == ["ended", "cleaning", "clean", "asked"]
        assert workers.living == fakes
        await asyncio.sleep(1000)
        assert fakes[0].events[4:] == fakes[1].events == []

    played(story)


def test_what_a_worker_left_is_cleaned_up_before_it_may_be_back():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        die(workers, fakes[0], 0.1)
        await asyncio.sleep(20)
        assert fakes[0].events == ["cleaning", "clean", "asked"]
        assert fakes[1].events == []

    played(story)


def test_where_all_are_dead_work_waits_for_the_first_that_is_back():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        die(workers, fakes[0], 50)
        die(workers, fakes[1], 5)
        assert await workers.next() is fakes[1]
        assert 5 <= asyncio.get_running_loop().time() < 10

    played(story)


def test_if_no_worker_comes_back_the_error_names_the_logs():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        for fake in fakes:
            die(workers, fake, 1e6)
        waiting = [asyncio.create_task(workers.next()) for _ in range(2)]
        for task in waiting:
            with pytest.raises(WorkerError, match=r"all 2 workers died and none came back.*300 s.*ray_logs"):
                await task

    played(story)


def test_one_that_cannot_build_its_tools_is_waited_for():
    class JudgeIsAway(FakeWorker):
        async def start(self) -> None:
            if asyncio.get_running_loop().time() < self.back_at:
                raise ToolError("judge: it does not answer")

    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        for fake in fakes:
            fake.__class__ = JudgeIsAway
            die(workers, fake, 250)
        assert await workers.next() in fakes
        assert 250 <= asyncio.get_running_loop().time() < 320

    played(story)


def test_with_a_node_all_of_its_workers_are_gone_and_only_the_first_has_to_be_tried():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        fakes[0].is_gone = True
        assert await workers.next_answering() is fakes[1]
        assert workers.living == [fakes[1]]
        assert await workers.next_answering() is fakes[1]

    played(story)


def test_a_bug_in_the_wait_for_dead_workers_is_told_to_everybody_who_waits():
    class BrokenWorker(FakeWorker):
        async def start(self) -> None:
            raise RuntimeError("what nobody expected")

    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        fakes[0].__class__ = BrokenWorker
        die(workers, fakes[0], 1)
        die(workers, fakes[1], 1e6)
        waiting = [asyncio.create_task(workers.next()) for _ in range(2)]
        for task in waiting:
            with pytest.raises(RuntimeError, match="what nobody expected"):
                await task

    played(story)


def test_a_call_that_a_worker_died_in_is_repeated_on_another_as_a_retry():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        asked: list[tuple[Any, bool]] = []

        async def call(worker: Any, is_retry: bool) -> str:
            asked.append((worker, is_retry))
            if worker is fakes[0]:
                worker.die(10)
                raise WorkerDiedError("agent_loop 0: its process died")
            return "done"

        assert await workers.ask(call) == "done"
        assert asked == [(fakes[0], False), (fakes[1], True)]
        assert workers.living == [fakes[1]]

    played(story)


def test_a_call_that_two_workers_die_over_is_given_up():
    async def story(workers: LoopWorkers, fakes: list[FakeWorker]) -> None:
        async def call(worker: Any, is_retry: bool) -> None:
            worker.die(10)
            raise WorkerDiedError(f"{worker.name}: its process died")

        with pytest.raises(WorkerDiedError, match="agent_loop 1"):
            await workers.ask(call)
        assert workers.living == []

    played(story)
