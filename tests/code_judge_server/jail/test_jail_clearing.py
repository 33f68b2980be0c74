"""A verdict does not wait for the removal of the job's files, which a program can make slow; the next job does."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from executor_jobs import BEGUN, python, slots, tier_or_skip, until_begun
from jail_driver import LIMITS as JAIL_LIMITS
from jail_driver import jail
from judge_process import until
from scripted_slot import ENDED, OtherEnd, begin, closes, sends, slot_with_other_end

from code_judge_server.jail import protocol
from code_judge_server.jail.launch.plan import make_plan
from code_judge_server.jail.slot.confinement import Confinement
from code_judge_server.jail.slot.enclosure import EnclosureError
from code_judge_server.jail.slot.job_start import JobMaker
from code_judge_server.jail.slot.slot import Slot as JailSlot
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.slot import Slot
from code_judge_server.sandbox.executor import Job
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import IsolationTier

MANY_FOLDERS = """
import os
for _ in range(4_000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
"""
"""Created in 0.03 s and removed in 0.14 s on an idle disk, and else in seconds."""
NOTHING_ELSE_IS_HERE = "import os; print(os.listdir())"
JOB = {"kind": "job", "argv": ["/bin/true"], "interpret": False, "files": [], "collect": 0, "collect_bytes": 0}


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Slot, OtherEnd]]:
    async with slot_with_other_end() as both:
        yield both


@pytest.fixture
async def executor() -> AsyncIterator[tuple[JailExecutor, Path]]:
    """One slot without namespaces, and its folder."""
    plan = make_plan(tier_or_skip("C"), num_slots=1, preloads={"bare": ()})
    executor = JailExecutor(plan, canaries=())
    await executor.start()
    assert plan.work_folder is not None
    yield executor, Path(plan.work_folder, "slot-0-bare")
    await executor.aclose()


def many_folders() -> Job:
    return python(MANY_FOLDERS, cpu_time_s=60)


async def test_very_many_folders_are_removed_after_the_verdict_and_before_the_next_job(
    executor: tuple[JailExecutor, Path],
) -> None:
    running, folder = executor
    (slot,) = slots()
    outcome = await running.execute(many_folders())
    assert (outcome.ending, outcome.exit_code) == (Ending.EXITED, 0)
    assert os.listdir(folder) != []
    following = asyncio.create_task(running.execute(python(f"{BEGUN}{NOTHING_ELSE_IS_HERE}; time.sleep(0.5)")))
    await until_begun(1)
    assert os.listdir(folder) == ["job"]
    assert (await following).stdout == b"['main.py']\n"
    assert slots() == [slot]
    await until(lambda: os.listdir(folder) == [])


async def test_a_slot_that_is_killed_while_it_clears_is_replaced_and_makes_no_other_job_late(
    executor: tuple[JailExecutor, Path],
) -> None:
    running, folder = executor
    outcome = await running.execute(many_folders())
    (slot,) = slots()
    os.kill(slot, signal.SIGKILL)
    assert (outcome.ending, outcome.exit_code) == (Ending.EXITED, 0)
    following = asyncio.create_task(running.execute(python(f"{BEGUN}{NOTHING_ELSE_IS_HERE}; time.sleep(0.5)")))
    await until_begun(1)
    assert len(os.listdir(folder)) > 1, "what was left is removed on the account of the next job"
    assert (await following).stdout == b"['main.py']\n"
    assert running.load().num_rebuilt_slots == 1
    await until(lambda: os.listdir(folder) == [])


def test_a_kill_that_comes_while_a_slot_clears_is_ignored() -> None:
    with jail(IsolationTier.C) as started, open(os.devnull, "r+b") as null:
        slot = started.slot()
        protocol.send(slot.end, JOB | {"limits": JAIL_LIMITS}, (null.fileno(),) * 4)
        assert slot.answer()["clears"]
        protocol.send(slot.end, {"kind": "kill"})
        assert slot.answer() == {"kind": "cleared"}
        assert started.run_python("print('alive')").text == "alive"


class NoPlace:
    """An `Enclosure` that cannot be created; records its calls."""

    clears: bool = True
    reaping_interval_ms: int | None = None

    def __init__(self, *, opens: bool) -> None:
        self.asked: list[str] = []
        self._opens = opens

    def open(self, disk_bytes: int, *, memory_bytes: int, proc_is_writable: bool) -> None:
        self.asked.append("open")
        if not self._opens:
            raise EnclosureError("no place")

    def enter(self) -> None: ...

    def kill(self) -> None: ...

    def reap(self, *, keep: int) -> None: ...

    def clear_out(self) -> None: ...

    def close(self) -> float:
        self.asked.append("close")
        return 0.0

    def clear(self) -> None:
        self.asked.append("clear")


class NoForks(JobMaker):
    """A `JobMaker` without memory."""

    def __init__(self) -> None:
        pass

    def fork_job(self, job: protocol.Message, descriptors: list[int], report: int, oom_score_adj: int) -> int:
        return -1


@contextmanager
def served(enclosure: NoPlace) -> Iterator[socket.socket]:
    """Serve by a slot in a thread; gives the server's end."""
    ours, theirs = protocol.socket_pair()
    confinement = Confinement(uid=None, ruleset=lambda: None, limits_memory=False, tasks_besides=lambda: 0)
    slot = JailSlot(theirs, enclosure, confinement, None, helper=None, maker=NoForks())
    serving = threading.Thread(target=slot.serve)
    serving.start()
    with theirs:
        with ours:
            yield ours
        serving.join()


@pytest.mark.parametrize(("opens", "asked"), [(False, ["open", "clear"]), (True, ["open", "close", "clear"])])
def test_the_place_of_a_job_that_could_not_be_set_up_is_cleared_too(opens: bool, asked: list[str]) -> None:
    enclosure = NoPlace(opens=opens)
    with served(enclosure) as server, open(os.devnull, "r+b") as null:
        protocol.send(server, JOB | {"limits": JAIL_LIMITS}, (null.fileno(),) * 4)
        said = [protocol.receive(server) for _ in range(2)]
    assert said[0] is not None
    assert said[0][0]["clears"]
    assert said[0][0]["error"] is not None
    assert said[1] == ({"kind": "cleared"}, [])
    assert enclosure.asked == asked


async def test_an_outcome_does_not_wait_until_the_slot_has_cleared_and_the_next_job_does(
    ends: tuple[Slot, OtherEnd],
) -> None:
    slot, other = ends
    for num_before in range(2):
        running = await begin(slot, other)
        protocol.close_all(other.take_job()[1])
        protocol.send(other.end, ENDED | {"clears": True})
        assert (await running.outcome).ending is Ending.EXITED
        running.kill(Ending.CANCELLED)  # too late
        assert other.idle_count == num_before
        protocol.send(other.end, {"kind": "cleared"})
        await until(lambda expected=num_before + 1: other.idle_count == expected)
        assert slot.alive
    other.end.setblocking(False)
    with pytest.raises(BlockingIOError):  # no kill
        protocol.receive(other.end)


async def test_a_job_that_could_not_be_set_up_is_cleared_too(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED | {"exit_code": None, "error": "no space", "clears": True})
    with pytest.raises(JailDiedError, match="no space"):
        await running.outcome
    assert (slot.alive, other.idle_count) == (True, 0)
    protocol.send(other.end, {"kind": "cleared"})
    await until(lambda: other.idle_count == 1)


@pytest.mark.parametrize(
    "misbehave",
    [
        closes,
        sends(ENDED),
        sends({"kind": "cleared", "more": 1}),
        lambda end: [sends({"kind": "cleared"})(end) for _ in range(2)],
        lambda end: end.send(b"not json"),
    ],
)
async def test_a_slot_that_dies_or_misbehaves_while_it_clears_is_dead_and_its_job_has_its_outcome(
    ends: tuple[Slot, OtherEnd], misbehave: Callable[[socket.socket], None]
) -> None:
    slot, other = ends
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED | {"clears": True})
    misbehave(other.end)
    assert (await running.outcome).ending is Ending.EXITED
    await until(other.is_dead)
    assert (slot.alive, other.idle_count) == (False, 1)
