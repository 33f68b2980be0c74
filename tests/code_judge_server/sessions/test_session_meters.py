"""The counts of one cell do not count against the next, nor against the idle session."""

import asyncio
import os
import socket
from collections.abc import Iterator

import pytest
from judge_process import until

from code_judge_server.jail_executor.meters import PeakMemory, Usage
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.sandbox.executor import JobLimits, Spent
from code_judge_server.sessions.idle_watch import IdleWatch
from code_judge_server.sessions.running_cell import RunningCell
from code_judge_server.sessions.schemas import CellRequest

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=100, wall_time_s=100, memory_bytes=64 * MIB, output_bytes=MIB, max_tasks=8, disk_bytes=MIB
)


class SlowMeter:
    """Still has the count of a cell that used too much, until it is restarted."""

    def __init__(self) -> None:
        self.num_read = 0
        self._memory_bytes = 1024 * MIB

    def restart(self) -> None:
        self._memory_bytes = MIB

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        self.num_read += 1
        return Usage(cpu_time_s=0.0, memory_bytes=self._memory_bytes)

    def close(self) -> None:
        pass


@pytest.fixture
def meter() -> SlowMeter:
    return SlowMeter()


@pytest.fixture
def slot(meter: SlowMeter) -> Iterator[PrivateSlot]:
    ours, theirs = socket.socketpair()
    slot = PrivateSlot(
        end=ours, pidfd=os.pidfd_open(os.getpid()), meter=meter, oom_kills=lambda: 0, peak=PeakMemory(None)
    )
    with theirs:
        yield slot
        slot.close()


async def test_a_cell_is_not_killed_for_the_usage_of_the_previous_one(slot: PrivateSlot, meter: SlowMeter) -> None:
    killed = asyncio.Event()
    cell = RunningCell(
        slot,
        CellRequest(code="1"),
        LIMITS,
        collect_bytes=0,
        max_chars=10,
        has_ended=lambda: False,
        kill=killed.set,
        spent=Spent(),
    )
    cell.send(lambda _: None)
    try:
        await until(lambda: killed.is_set() or meter.num_read > 3)
        assert not killed.is_set()
    finally:
        cell.close()


async def test_an_idle_session_is_not_ended_for_the_usage_of_its_last_cell(slot: PrivateSlot, meter: SlowMeter) -> None:
    ended = asyncio.Event()
    watch = IdleWatch(slot, LIMITS, end=ended.set)
    watch.start()
    try:
        await until(lambda: ended.is_set() or meter.num_read > 2)
        assert not ended.is_set()
    finally:
        watch.stop()
