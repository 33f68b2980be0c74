"""Samples of resources that no control group counts: memory in socket buffers and for mappings, CPU time of children that
nobody waits for, and large trees that must not block the server.
"""

import asyncio
import dataclasses
import sys
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from executor_jobs import started_executor, tier_or_skip

from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.jail_executor.meters import UnwaitedCpu
from code_judge_server.sandbox.executor import Job, JobLimits
from code_judge_server.sandbox.outcome import Ending

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=5.0, wall_time_s=60, memory_bytes=96 * MIB, output_bytes=100_000, max_tasks=64, disk_bytes=4 * MIB
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def executor() -> AsyncIterator[JailExecutor]:
    async with started_executor(tier_or_skip("B"), num_slots=1) as executor:
        yield executor


def python(code: str, limits: JobLimits = LIMITS) -> Job:
    return Job(argv=(sys.executable, "main.py"), files={"main.py": code.encode()}, limits=limits, preload="bare")


@pytest.mark.asyncio(loop_scope="module")
async def test_socket_buffers_count_as_memory(executor: JailExecutor) -> None:
    code = """
import os, socket, time
kept = []
for child in range(8):
    if os.fork() == 0:
        for _ in range(100):
            pair = socket.socketpair()
            for end in pair:
                end.setblocking(False)
                try:
                    while True:
                        end.send(bytes(65536))
                except BlockingIOError:
                    pass
            kept.append(pair)
        time.sleep(100)
time.sleep(100)
"""
    outcome = await executor.execute(python(code, dataclasses.replace(LIMITS, memory_bytes=128 * MIB)))
    assert outcome.ending is Ending.MEMORY


@pytest.mark.asyncio(loop_scope="module")
async def test_kernel_memory_for_mappings_counts_as_memory(executor: JailExecutor) -> None:
    code = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
area = libc.mmap(None, 60_000 * 4096, 0, 0x22, -1, 0)
for page in range(0, 60_000, 2):
    libc.mprotect(area + page * 4096, 4096, 1)
for child in range(10):
    if os.fork() == 0:
        break
time.sleep(100)
"""
    outcome = await executor.execute(python(code, LIMITS))
    assert outcome.ending is Ending.MEMORY
    assert outcome.peak_memory_bytes > LIMITS.memory_bytes


@pytest.mark.asyncio(loop_scope="module")
async def test_a_few_sockets_are_no_offence(executor: JailExecutor) -> None:
    code = "import socket, time\nkept = [socket.socketpair() for _ in range(20)]\ntime.sleep(0.3)"
    assert (await executor.execute(python(code))).ending is Ending.EXITED


@pytest.mark.asyncio(loop_scope="module")
async def test_cpu_time_of_unwaited_children_counts(executor: JailExecutor) -> None:
    code = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
reading, writing = os.pipe()
while True:
    if os.fork() == 0:
        end = time.process_time() + 0.25
        while time.process_time() < end:
            pass
        os.write(writing, b'x')
        os._exit(0)
    os.read(reading, 1)
"""
    outcome = await executor.execute(python(code, dataclasses.replace(LIMITS, cpu_time_s=0.5)))
    assert outcome.ending is Ending.CPU_TIME


@pytest.mark.asyncio(loop_scope="module")
async def test_cpu_time_of_children_that_are_waited_for_counts_once(executor: JailExecutor) -> None:
    code = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        end = time.process_time() + 0.06
        while time.process_time() < end:
            pass
        os._exit(0)
    os.wait()
"""
    outcome = await executor.execute(python(code))
    assert 1.1 < outcome.cpu_time_s < 1.5


@pytest.mark.asyncio(loop_scope="module")
async def test_a_large_tree_does_not_block_the_event_loop(executor: JailExecutor) -> None:
    code = """
import os, time
memory = bytearray(60 << 20)
for _ in range(40):
    if os.fork() == 0:
        time.sleep(100)
time.sleep(2)
"""
    running = asyncio.ensure_future(executor.execute(python(code)))
    longest_s, last_s = 0.0, time.thread_time()
    while not running.done():
        await asyncio.sleep(0.005)
        now_s = time.thread_time()  # of the CPU, since other processes may keep this thread from it
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    outcome = running.result()
    assert outcome.ending is Ending.EXITED, "what is shared counts once"
    assert outcome.peak_memory_bytes > 55 * MIB
    assert longest_s < 0.15


def test_cpu_time_is_lost_only_at_the_second_sample_and_only_if_uncharged() -> None:
    account = UnwaitedCpu()
    parent, child = (1, 10), (2, 20)
    assert account.update({parent: (1, 0), child: (5, 0)}, reaped=0) == 0
    assert account.update({parent: (1, 0)}, reaped=0) == 0
    assert account.update({parent: (1, 0)}, reaped=0) == 5
    waiting = UnwaitedCpu()
    waiting.update({parent: (1, 0), child: (5, 0)}, reaped=0)
    waiting.update({parent: (1, 0)}, reaped=0)  # the parent was read just before it waited
    assert waiting.update({parent: (1, 6)}, reaped=0) == 0
    overlooked = UnwaitedCpu()
    overlooked.update({parent: (1, 0), child: (5, 0)}, reaped=0)
    overlooked.update({parent: (1, 0)}, reaped=0)
    assert overlooked.update({parent: (1, 0), child: (6, 0)}, reaped=0) == 0
    above = UnwaitedCpu()
    above.update({parent: (1, 0), child: (5, 0)}, reaped=0)
    above.update({}, reaped=6)
    assert above.update({}, reaped=6) == 0
