"""What became of a job, where two things that ended it are close to each other, or where the job hides it."""

import asyncio
import dataclasses
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from jail_tiers import NAMESPACE_TIERS

from code_judge_server import process_tree
from code_judge_server.ending import Ending
from code_judge_server.jail.canaries import find_tier
from code_judge_server.jail.plan import make_plan
from code_judge_server.jail_executor import executor as executor_module
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox import Job, JobLimits
from code_judge_server.schemas import IsolationTier

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=2, wall_time_s=10, memory_bytes=96 * MIB, output_bytes=100_000, max_tasks=32, disk_bytes=4 * MIB
)
POOL_WITH_A_LARGE_WORKER = """
import multiprocessing
def size(mib): return len(bytearray(mib << 20))
if __name__ == "__main__":
    with multiprocessing.Pool(2) as pool: print(pool.map(size, [1, 400, 1]))
"""
SPARE_ME_AND_FILL_SOCKETS = r"""
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
static char block[65536];
int main(void) {
    int score = open("/proc/self/oom_score_adj", O_WRONLY), size = 1 << 22;
    if (score >= 0 && write(score, "0", 1) == 1) puts("spared");
    for (int i = 0; i < 400; i++) {
        int ends[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends)) break;
        for (int k = 0; k < 2; k++) {
            setsockopt(ends[k], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
            while (write(ends[k], block, sizeof block) > 0) continue;
        }
    }
    puts("survived");
    return 0;
}
"""
IN_PACKETS = """
import fcntl, os
fcntl.fcntl(1, fcntl.F_SETFL, fcntl.fcntl(1, fcntl.F_GETFL) | os.O_DIRECT)
os.write(1, b"42\\n")
for _ in range(10): os.write(1, b"junk that is no answer\\n")
os._exit(0)
"""


def python(code: str, *, files: dict[str, bytes] | None = None, **limits: Any) -> Job:
    return Job(
        argv=(sys.executable, "main.py"),
        files={"main.py": code.encode(), **(files or {})},
        limits=dataclasses.replace(LIMITS, **limits),
        preload="bare",
    )


async def executor_of(tier: IsolationTier) -> JailExecutor:
    if find_tier(tier).tier is not tier:
        pytest.skip(f"this machine does not give tier {tier}")
    executor = JailExecutor(make_plan(tier, num_slots=1, preloads={"bare": ()}), canaries=())
    await executor.start()
    return executor


@pytest.fixture
async def in_tier_a() -> AsyncIterator[JailExecutor]:
    executor = await executor_of(IsolationTier.A)
    yield executor
    await executor.aclose()


@pytest.fixture(params=NAMESPACE_TIERS)
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[JailExecutor]:
    executor = await executor_of(request.param)
    yield executor
    await executor.aclose()


async def test_a_program_that_waits_for_what_was_killed_for_memory_had_too_little_memory(
    in_tier_a: JailExecutor,
) -> None:
    outcome = await in_tier_a.execute(python(POOL_WITH_A_LARGE_WORKER, wall_time_s=1.5))
    assert outcome.ending is Ending.MEMORY, outcome


async def test_a_job_over_whose_memory_its_slot_was_killed_had_too_little_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_kills = 0
    monkeypatch.setattr(executor_module, "kernel_counters", lambda *_: (lambda: num_kills, lambda: 0))
    executor = await executor_of(NAMESPACE_TIERS[0])
    try:
        (launcher,) = (pid for pid in process_tree.children(os.getpid()) if b"jail.launcher" in command_of(pid))
        (slot,) = (pid for zygote in grandchildren(launcher) for pid in process_tree.children(zygote))
        task = asyncio.create_task(executor.execute(python("print(1, flush=True)\nimport time; time.sleep(600)")))
        await asyncio.sleep(0.4)
        num_kills = 1
        os.kill(slot, signal.SIGKILL)
        outcome = await task
        assert (outcome.ending, outcome.stdout, outcome.signal) == (Ending.MEMORY, b"1\n", signal.SIGKILL)
        assert (await executor.execute(python("print(2)"))).stdout == b"2\n"
    finally:
        await executor.aclose()


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def grandchildren(pid: int) -> list[int]:
    return [grandchild for child in process_tree.children(pid) for grandchild in process_tree.children(child)]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
async def test_no_job_can_have_its_slot_killed_in_its_place(in_tier_a: JailExecutor) -> None:
    compiler = Job(
        argv=(str(shutil.which("gcc")), "-o", "main", "main.c"),
        files={"main.c": SPARE_ME_AND_FILL_SOCKETS.encode()},
        limits=dataclasses.replace(LIMITS, memory_bytes=256 * MIB),
        collect=("main",),
        collect_bytes=MIB,
    )
    program = (await in_tier_a.execute(compiler)).files["main"]
    outcome = await in_tier_a.execute(Job(argv=("./main",), files={"main": program}, limits=LIMITS))
    assert (outcome.ending, outcome.stdout) == (Ending.MEMORY, b"")
    assert in_tier_a.load().num_rebuilt_slots == 0


async def test_nothing_that_was_written_in_packets_is_lost(executor: JailExecutor) -> None:
    outcome = await executor.execute(python(IN_PACKETS))
    assert outcome.stdout == b"42\n" + 10 * b"junk that is no answer\n"


async def test_packets_past_the_limit_of_output_are_seen(executor: JailExecutor) -> None:
    outcome = await executor.execute(python(IN_PACKETS, output_bytes=100))
    assert (outcome.ending, len(outcome.stdout), outcome.stdout_cut) == (Ending.OUTPUT, 100, True)


async def test_a_job_may_have_as_many_files_as_a_submission_on_the_smallest_disk(executor: JailExecutor) -> None:
    files = {f"f{number}": b"" for number in range(1023)}
    job = python("import os; print(len(os.listdir()))", files=files, disk_bytes=1026 * 4096)
    assert (await executor.execute(job)).stdout == b"1024\n"


NAMES_OF_OTHERS = r"""
import re
found = set()
for line in open("/proc/self/maps"):
    span, rights = line.split()[:2]
    if "r" not in rights or "[v" in line: continue
    start, end = (int(bound, 16) for bound in span.split("-"))
    try:
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(start)
            found |= set(re.findall(b"SEC" + rb"RET_\w{4}", memory.read(end - start)))
    except OSError: continue
print(found)
"""


async def test_no_name_of_a_file_stays_where_another_job_can_read_it(executor: JailExecutor) -> None:
    job = python("open('SECRET_made', 'w')", files={"SECRET_file": b""})
    job = dataclasses.replace(job, collect=("SECRET_made",), collect_bytes=100)
    for _ in range(3):
        assert list((await executor.execute(job)).files) == ["SECRET_made"]
    assert (await executor.execute(python(NAMES_OF_OTHERS))).stdout == b"set()\n"
