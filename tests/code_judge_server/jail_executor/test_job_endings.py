"""The ending of a job, if two causes are close to each other, or if the job hides it."""

import dataclasses
import shutil
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from executor_jobs import started_executor, tier_or_skip
from jail_tiers import NAMESPACE_TIERS

from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox.executor import Job, JobLimits
from code_judge_server.sandbox.outcome import Ending

pytestmark = pytest.mark.asyncio(loop_scope="module")

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


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def in_tier_a() -> AsyncIterator[JailExecutor]:
    async with started_executor(tier_or_skip("A"), num_slots=1) as executor:
        yield executor


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=NAMESPACE_TIERS)
async def executor(request: pytest.FixtureRequest) -> AsyncIterator[JailExecutor]:
    async with started_executor(tier_or_skip(request.param), num_slots=1) as executor:
        yield executor


async def test_waiting_for_an_oom_killed_process_is_a_memory_limit(
    in_tier_a: JailExecutor,
) -> None:
    outcome = await in_tier_a.execute(python(POOL_WITH_A_LARGE_WORKER, wall_time_s=1.5))
    assert outcome.ending is Ending.MEMORY, outcome


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
