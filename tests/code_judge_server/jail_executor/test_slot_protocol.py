"""A slot that lies, babbles, falls silent or dies is a failure of the slot, never of the server."""

import asyncio
import contextlib
import dataclasses
import errno
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from judge_process import wait_until
from scripted_slot import ENDED, LIMITS, OtherEnd, begin, closes, sends, slot_with_other_end, start

from code_judge_server.jail import protocol
from code_judge_server.jail_executor import running_job
from code_judge_server.jail_executor.messages import JailDiedError
from code_judge_server.jail_executor.meters import OomKills, TreeMeter, Usage
from code_judge_server.jail_executor.sealed_files import seal_input
from code_judge_server.jail_executor.slot import Slot
from code_judge_server.jail_executor.watch import Watch
from code_judge_server.sandbox.executor import ExecutorError, Job
from code_judge_server.sandbox.outcome import Ending


@pytest.fixture
async def watch() -> AsyncIterator[Watch]:
    watch = Watch(asyncio.get_running_loop())
    yield watch
    watch.close()


@pytest.fixture
async def ends() -> AsyncIterator[tuple[Slot, OtherEnd]]:
    async with slot_with_other_end() as both:
        yield both


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_a_job_arrives_whole_and_its_outcome_has_the_kernels_counts(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    before = open_descriptors()
    running = await begin(slot, other)
    message, (files, stdin, stdout, stderr, collected) = other.take_job()
    assert (message["files"], message["collect"]) == ([2, 3], 1)
    assert (os.read(files, 100), os.read(stdin, 100)) == (b"12345a/b\0c\0out\0", b"in")
    with pytest.raises(PermissionError):
        os.pwrite(files, b"x", 0)
    os.write(stdout, b"x" * 1000)
    os.write(stderr, b"y" * 1001)
    os.write(collected, b"content")
    for fd in (files, stdin, stdout, stderr, collected):
        os.close(fd)
    protocol.send(other.end, ENDED | {"exit_code": None, "signal": 6, "collected": [[0, 7]]})
    outcome = await running.outcome
    assert (outcome.ending, outcome.exit_code, outcome.signal) == (Ending.OUTPUT, None, 6)
    assert (outcome.stdout, outcome.stdout_cut) == (b"x" * 1000, False)
    assert (outcome.stderr, outcome.stderr_cut) == (b"y" * 1000, True)
    assert (outcome.cpu_time_s, outcome.wall_time_s) == (0.5, 0.25)
    assert (outcome.peak_memory_bytes, outcome.files) == (2000, {"out": b"content"})
    assert (slot.alive, other.idle_count, open_descriptors()) == (True, 1, before)


@pytest.mark.parametrize(
    ("report", "ending"),
    [
        ({"cpu_time_s": 1.01}, Ending.CPU_TIME),
        ({"oom_kills": 1}, Ending.MEMORY),
        ({"oom_kills": None, "peak_memory_bytes": None, "max_rss_bytes": 2**26 + 1}, Ending.MEMORY),
        ({"exit_code": 1, "tasks_refused": 3}, Ending.TASKS),
        ({"exit_code": 0, "tasks_refused": 3}, Ending.EXITED),
        ({"cpu_time_s": 1.01, "tasks_refused": 3}, Ending.TASKS),
        ({"oom_kills": 1, "tasks_refused": 3}, Ending.MEMORY),
        ({}, Ending.EXITED),
    ],
    ids=str,
)
async def test_the_counters_at_the_end_decide(
    ends: tuple[Slot, OtherEnd], report: dict[str, Any], ending: Ending
) -> None:
    slot, other = ends
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED | report)
    assert (await running.outcome).ending is ending


async def test_output_beyond_the_limit_kills(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    running = await begin(slot, other)
    _, (*rest, stdout, _, _) = other.take_job()
    os.write(stdout, b"x" * 1001)
    assert await asyncio.to_thread(protocol.receive, other.end) == ({"kind": "kill"}, [])
    assert not running.outcome.done()
    protocol.send(other.end, ENDED | {"exit_code": None, "signal": 9})
    assert (await running.outcome).ending is Ending.OUTPUT
    protocol.close_all(rest)


async def test_the_wall_clock_kills(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    running = await begin(slot, other, Job(argv=("true",), limits=dataclasses.replace(LIMITS, wall_time_s=0.08)))
    protocol.close_all(other.take_job()[1])
    assert await asyncio.to_thread(protocol.receive, other.end) == ({"kind": "kill"}, [])
    protocol.send(other.end, ENDED)
    outcome = await running.outcome
    assert outcome.ending is Ending.WALL_TIME
    assert outcome.wall_time_s >= 0.08


async def test_a_server_that_was_late_itself_fails_no_job_that_was_not(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    running = await begin(slot, other, Job(argv=("true",), limits=dataclasses.replace(LIMITS, wall_time_s=0.05)))
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, {**ENDED, "wall_time_s": 0.04})
    block_the_event_loop()
    assert (await running.outcome).ending is Ending.EXITED
    other.end.setblocking(False)
    with pytest.raises(BlockingIOError):  # no kill
        protocol.receive(other.end)


def block_the_event_loop() -> None:
    time.sleep(0.2)


async def test_a_slot_that_does_not_end_its_job_is_killed(
    ends: tuple[Slot, OtherEnd], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running_job, "ANSWER_TIMEOUT_S", 0.1)
    slot, other = ends
    running = await begin(slot, other)
    running.kill(Ending.CANCELLED)
    with pytest.raises(JailDiedError, match="did not end"):
        await running.outcome
    assert not slot.alive
    wait_until(other.is_dead)


@pytest.mark.parametrize(
    "misbehave",
    [
        closes,
        lambda end: end.send(b"not json"),
        lambda end: end.send(b"[1]"),
        lambda end: end.send(b'{"kind":' * 20000),
        lambda end: end.send(b"\xff" * 100000),
        sends({"kind": "surprise"}),
        sends({"kind": "ended"}),
        sends(ENDED | {"cpu_time_s": -1.0}),
        sends(ENDED | {"cpu_time_s": "1"}),
        sends(ENDED | {"wall_time_s": None}),
        sends(ENDED | {"oom_kills": True}),
        sends(ENDED | {"clears": None}),
        sends(ENDED | {"more": 1}),
        sends({"kind": "cleared"}),
        sends(ENDED | {"collected": [[0, 10]]}),
        sends(ENDED | {"collected": [[1, 1]]}),
        sends(ENDED | {"collected": [[0, 5], [0, 5]]}),
        sends({"kind": "surprise"}, descriptors=8),
        sends({"kind": "surprise"}, descriptors=20),
    ],
)
async def test_a_slot_that_misbehaves_is_dead_and_its_job_may_run_again(
    ends: tuple[Slot, OtherEnd], misbehave: Callable[[socket.socket], None]
) -> None:
    slot, other = ends
    before = open_descriptors()
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    misbehave(other.end)
    with pytest.raises(JailDiedError):
        await running.outcome
    assert (slot.alive, other.idle_count) == (False, 1)
    wait_until(other.is_dead)
    assert open_descriptors() <= before


async def test_a_job_that_could_not_be_set_up_fails_without_its_slot(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED | {"exit_code": None, "error": "no space"})
    with pytest.raises(JailDiedError, match="no space"):
        await running.outcome
    assert (slot.alive, other.idle_count) == (True, 1)


async def test_an_end_without_a_job_is_the_end_of_the_slot(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    protocol.send(other.end, ENDED)
    await asyncio.sleep(0.05)
    assert not slot.alive


async def test_a_command_too_long_for_a_message_is_refused_and_the_slot_lives(ends: tuple[Slot, OtherEnd]) -> None:
    slot, other = ends
    before = open_descriptors()
    with pytest.raises(ExecutorError, match="message of 300"):
        await begin(slot, other, Job(argv=("true", "x" * 300_000), limits=LIMITS))
    assert (slot.alive, other.idle_count, open_descriptors()) == (True, 1, before)
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED)
    assert (await running.outcome).ending is Ending.EXITED


async def test_a_cancelled_job_returns_at_once_and_its_slot_is_busy_until_it_answers(
    ends: tuple[Slot, OtherEnd],
) -> None:
    slot, other = ends
    running = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    waiter = asyncio.ensure_future(running.outcome)
    waiter.cancel()
    running.kill(Ending.CANCELLED)
    with contextlib.suppress(asyncio.CancelledError):
        await waiter
    assert protocol.receive(other.end) == ({"kind": "kill"}, [])
    assert other.idle_count == 0
    protocol.send(other.end, ENDED)
    await asyncio.sleep(0.05)
    assert (slot.alive, other.idle_count) == (True, 1)


async def test_a_kill_that_crosses_with_the_end_of_its_job_does_not_meet_the_next_one(
    ends: tuple[Slot, OtherEnd],
) -> None:
    slot, other = ends
    first = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    protocol.send(other.end, ENDED)
    await first.outcome
    second = await begin(slot, other)
    protocol.close_all(other.take_job()[1])
    first.kill(Ending.CANCELLED)  # its waiter was cancelled before it could take the outcome
    other.end.setblocking(False)
    with pytest.raises(BlockingIOError):
        protocol.receive(other.end)
    protocol.send(other.end, ENDED)
    assert (await second.outcome).ending is Ending.EXITED


class FailingMeter(TreeMeter):
    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        raise OSError(errno.EMFILE, "no descriptor is left")


async def test_a_job_whose_usage_cannot_be_read_fails_and_the_others_are_still_watched(watch: Watch) -> None:
    sockets, processes = [protocol.socket_pair() for _ in range(2)], [start("sleep", "600") for _ in range(2)]
    meters = [FailingMeter(processes[0].pid), TreeMeter(processes[1].pid)]
    slots = [
        Slot(ours, pid=process.pid, meter=meter, watch=watch, oom_kills=OomKills(lambda: 0), on_death=lambda: None)
        for (ours, _), process, meter in zip(sockets, processes, meters, strict=True)
    ]
    others = [OtherEnd(theirs, process) for (_, theirs), process in zip(sockets, processes, strict=True)]
    jobs = [
        Job(argv=("true",), limits=dataclasses.replace(LIMITS, wall_time_s=wall_time_s)) for wall_time_s in (30, 0.3)
    ]
    failing, watched = [await begin(slot, other, job) for slot, other, job in zip(slots, others, jobs, strict=True)]
    with pytest.raises(JailDiedError, match="cannot be watched"):
        await failing.outcome
    protocol.close_all(others[1].take_job()[1])
    assert await asyncio.to_thread(protocol.receive, others[1].end) == ({"kind": "kill"}, [])
    protocol.send(others[1].end, ENDED)
    assert (await watched.outcome).ending is Ending.WALL_TIME
    for slot, other in zip(slots, others, strict=True):
        slot.die("the test is over")
        other.end.close()
        other.process.wait()


async def test_large_files_are_sealed_without_stalling_the_event_loop() -> None:
    job = Job(argv=("true",), limits=LIMITS, files={"a": b"1" * 2**25, "b": b"2"}, stdin=b"in")
    sealing = asyncio.ensure_future(seal_input(job))
    num_turns = 0
    while not sealing.done():
        num_turns += 1
        await asyncio.sleep(0)
    sealed = sealing.result()
    assert num_turns > 1
    assert os.pread(sealed.files, 100, 2**25 - 1) == b"12a\0b\0"
    with pytest.raises(PermissionError):
        os.pwrite(sealed.files, b"x", 0)
    sealed.close()


async def test_a_job_cancelled_while_its_files_are_sealed_leaves_no_descriptor() -> None:
    before = open_descriptors()
    sealing = asyncio.ensure_future(seal_input(Job(argv=("true",), limits=LIMITS, files={"a": bytes(2**25)})))
    while open_descriptors() == before:  # noqa: ASYNC110 (a thread does it)
        await asyncio.sleep(0)
    sealing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sealing
    async with asyncio.timeout(60):
        while open_descriptors() > before:  # noqa: ASYNC110 (a thread does it)
            await asyncio.sleep(0.01)
