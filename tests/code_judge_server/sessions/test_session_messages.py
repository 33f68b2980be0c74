"""Messages of a session, and their order: the server's end of one, whose other end the test plays."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from code_judge_server.jail import protocol
from code_judge_server.jail_executor.meters import PeakMemory, Usage
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.sandbox.executor import JobLimits
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.sessions.schemas import CellRequest
from code_judge_server.sessions.session import CellRefusedError, Session, SessionDiedError

LIMITS = JobLimits(
    cpu_time_s=1.0, wall_time_s=10.0, memory_bytes=1 << 28, max_tasks=16, output_bytes=1 << 16, disk_bytes=1 << 20
)


class _Meter:
    """Reports the usage that a test sets."""

    def __init__(self) -> None:
        self.usage = Usage(cpu_time_s=0.0)

    def restart(self) -> None:
        """Never called for a session."""

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        return self.usage

    def close(self) -> None:
        """Nothing is open."""


class _PlayedSession:
    """A session, and the end of its socket that its own processes have."""

    def __init__(self, session: Session, meter: _Meter, process: "subprocess.Popen[bytes]") -> None:
        self.process = process
        self.session = session
        self.meter = meter
        self.end: socket.socket | None = None

    def say(self, **message: Any) -> None:
        assert self.end is not None
        protocol.send(self.end, message)

    def ended(self, number: int, state: str = "failed", *, wall_time_s: float = 0.0) -> None:
        self.say(kind="ended", number=number, state=state, exit_code=1, signal=None, wall_time_s=wall_time_s)

    async def next_message(self) -> protocol.Message:
        """Return the server's next message."""
        assert self.end is not None
        message, descriptors = await asyncio.wait_for(asyncio.to_thread(_received, self.end), 5)
        protocol.close_all(descriptors)
        return message

    def cell(self, **limits: float) -> "asyncio.Task[Any]":
        return asyncio.create_task(self.session.run(CellRequest(code="1"), start=0, limits=replace(LIMITS, **limits)))


def _start_process() -> "subprocess.Popen[bytes]":
    """Start a process in place of the slot: the session ends with it."""
    return subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)


@asynccontextmanager
async def _played_session() -> AsyncIterator[_PlayedSession]:
    ours, slot_end = protocol.socket_pair()
    ours.setblocking(False)
    process = _start_process()
    meter = _Meter()
    slot = PrivateSlot(
        end=ours,
        pidfd=os.pidfd_open(process.pid),
        meter=meter,
        oom_kills=lambda: 0,
        peak=PeakMemory(None),
    )
    played = _PlayedSession(Session("it", limits=LIMITS, max_snapshots=4, max_chars=100), meter, process)
    died = asyncio.Event()
    starting = asyncio.create_task(
        played.session.start(slot, python=sys.executable, memory_is_sampled=False, on_death=lambda _: died.set())
    )
    _, (contents, control, *others) = await asyncio.to_thread(_received, slot_end)
    protocol.close_all([contents, *others])
    played.end = socket.socket(fileno=control)
    played.say(kind="ready")
    await starting
    try:
        yield played
    finally:
        played.session.close()
        slot_end.close()
        process.communicate(b"\n")
        await asyncio.wait_for(died.wait(), 5)
        played.end.close()


def _received(end: socket.socket) -> tuple[protocol.Message, list[int]]:
    data, descriptors, _, _ = socket.recv_fds(end, protocol.MAX_MESSAGE_BYTES, protocol.MAX_DESCRIPTORS)
    return json.loads(data), descriptors


def _play(play: Any) -> None:
    async def run() -> None:
        async with _played_session() as played:
            await play(played)

    asyncio.run(run())


def test_a_cell_that_the_kernel_does_not_pass_on_is_refused_at_once_and_the_next_one_runs():
    async def play(played: _PlayedSession) -> None:
        first = played.cell()
        await played.next_message()
        played.ended(1, "refused")
        with pytest.raises(CellRefusedError, match="Send the cell again"):
            await first
        assert (played.session.alive, played.session.snapshots) == (True, [0])
        second = played.cell()
        await played.next_message()
        played.ended(2)
        assert (await second).outcome.exit_code == 1

    _play(play)


def test_a_cell_waits_for_the_end_of_a_cancelled_one():
    async def play(played: _PlayedSession) -> None:
        first = played.cell()
        assert (await played.next_message())["number"] == 1
        first.cancel()
        second = played.cell()
        assert (await played.next_message())["kind"] == "kill"
        first.cancel()  # again, as a server does that stops
        await asyncio.sleep(0.05)
        assert not first.done()
        played.ended(1, "kept")
        assert await played.next_message() == {"kind": "drop", "snapshot": 1}
        assert (await played.next_message())["number"] == 2
        await asyncio.sleep(0.05)
        assert (first.cancelled(), second.done()) == (True, False)
        played.ended(2)
        assert (await second).outcome.exit_code == 1
        assert played.session.alive

    _play(play)


@pytest.mark.parametrize(
    ("took_s", "ending"), [(0.1, Ending.EXITED), (0.6, Ending.WALL_TIME)], ids=["in time", "too late"]
)
def test_a_cell_whose_end_is_read_late_is_judged_by_the_clock_of_its_session(took_s: float, ending: Ending):
    async def play(played: _PlayedSession) -> None:
        cell = played.cell(wall_time_s=0.4)
        await played.next_message()
        played.ended(1, "kept", wall_time_s=took_s)
        time.sleep(0.8)  # noqa: ASYNC251 - that is what is tested
        outcome = (await cell).outcome
        assert outcome.ending is ending
        assert outcome.wall_time_s == took_s
        assert played.session.snapshots == ([0, 1] if ending is Ending.EXITED else [0])
        assert played.session.alive

    _play(play)


def test_no_session_can_say_that_a_cell_took_longer_than_it_did():
    async def play(played: _PlayedSession) -> None:
        cell = played.cell()
        await played.next_message()
        played.ended(1, wall_time_s=1e9)
        outcome = (await cell).outcome
        assert (outcome.ending, outcome.wall_time_s < 5) == (Ending.EXITED, True)

    _play(play)


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_session_that_sends_an_unexpected_message_is_closed(number: int):
    async def play(played: _PlayedSession) -> None:
        cell = played.cell()
        await played.next_message()
        played.ended(1)
        await cell
        played.ended(number)
        await asyncio.sleep(0.05)
        assert not played.session.alive

    _play(play)


def test_a_flood_of_messages_holds_nothing_up():
    async def play(played: _PlayedSession) -> None:
        played.end.settimeout(5)  # pyright: ignore[reportOptionalMemberAccess] - it is started

        def flood() -> int:
            sent = 0
            try:
                for _ in range(100_000):
                    played.say(kind="ready")
                    sent += 1
            except OSError:
                pass
            return sent

        flooding = asyncio.create_task(asyncio.to_thread(flood))
        await asyncio.wait_for(flooding, 5)
        assert flooding.result() < 100_000
        assert not played.session.alive

    _play(play)


@pytest.mark.parametrize(
    "usage",
    [
        Usage(cpu_time_s=2.0),
        Usage(cpu_time_s=0.0, memory_bytes=2 * LIMITS.memory_bytes),
        Usage(cpu_time_s=0.0, num_tasks=2 * LIMITS.max_tasks),
    ],
    ids=["cpu", "memory", "tasks"],
)
def test_a_session_that_uses_something_while_no_cell_runs_is_closed(usage: Usage):
    async def play(played: _PlayedSession) -> None:
        await asyncio.sleep(0.6)
        assert played.session.alive
        played.meter.usage = usage
        await asyncio.sleep(0.6)
        assert not played.session.alive

    _play(play)


def test_the_usage_of_a_cell_is_not_charged_to_its_session():
    async def play(played: _PlayedSession) -> None:
        cell = played.cell()
        await played.next_message()
        played.meter.usage = Usage(cpu_time_s=0.9)
        await asyncio.sleep(0.3)
        played.ended(1)
        await cell
        await asyncio.sleep(0.6)
        assert played.session.alive

    _play(play)


def test_a_cell_is_notified_of_the_death_of_its_session():
    async def play(played: _PlayedSession) -> None:
        cell = played.cell()
        await played.next_message()
        played.say(kind="nonsense")
        await asyncio.sleep(0.05)
        assert (played.session.alive, cell.done()) == (False, False)  # its processes may run still
        played.process.kill()
        with pytest.raises(SessionDiedError):
            await asyncio.wait_for(cell, 5)

    _play(play)
