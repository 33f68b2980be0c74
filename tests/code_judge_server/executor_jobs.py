"""Jobs for a `JailExecutor`, and its processes below this one."""

import asyncio
import contextlib
import dataclasses
import os
import select
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from judge_process import until

from code_judge_server.jail.launch.plan import make_plan
from code_judge_server.jail.probe.canaries import find_tier
from code_judge_server.jail_executor.executor import JailExecutor
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.executor import Job, JobLimits, Outcome
from code_judge_server.schemas import IsolationTier

MIB = 1024 * 1024
LIMITS = JobLimits(
    cpu_time_s=0.4, wall_time_s=60, memory_bytes=96 * MIB, output_bytes=100_000, max_tasks=16, disk_bytes=4 * MIB
)
BEGUN = "import ctypes, time\nctypes.CDLL(None).prctl(15, b'has begun')\n"
"""First lines of a program, after which `until_begun` sees it run, by the name of its process."""
FOREVER = f"{BEGUN}time.sleep(600)"
TIERS = ["A", "B", "C"]


def python(code: str, *, preload: str | None = "bare", files: dict[str, bytes] | None = None, **job: Any) -> Job:
    """Return the job that runs `code`; further keywords are fields of the job or of its limits."""
    limits = {name: job.pop(name) for name in LIMITS.__slots__ if name in job}
    return Job(
        argv=(sys.executable, "main.py"),
        files={"main.py": code.encode(), **(files or {})},
        limits=dataclasses.replace(LIMITS, **limits),
        preload=preload,
        **job,
    )


def tier_or_skip(name: str) -> IsolationTier:
    """Return the tier; skip the test where this machine does not give it."""
    wanted = IsolationTier(name)
    if find_tier(wanted).tier is not wanted:
        pytest.skip(f"this machine does not give tier {wanted}")
    return wanted


@asynccontextmanager
async def started_executor(tier: IsolationTier, *, num_slots: int = 2) -> AsyncIterator[JailExecutor]:
    """Start an executor without preloaded modules, and close it at the end."""
    executor = JailExecutor(make_plan(tier, num_slots=num_slots, preloads={"bare": ()}), canaries=())
    await executor.start()
    try:
        yield executor
    finally:
        await executor.aclose()


async def run_all(executor: JailExecutor, *jobs: Job) -> list[Outcome]:
    """Run jobs at once and return their outcomes."""
    return await asyncio.gather(*(executor.execute(job) for job in jobs))


async def until_begun(num_programs: int) -> None:
    """Wait until `num_programs` programs below the launchers of this process are past `BEGUN`."""
    await until(lambda: num_begun() >= num_programs)


def num_begun() -> int:
    """Return the number of programs that are past `BEGUN` and have not ended."""
    names = []
    for pid in (pid for launcher in launchers() for pid in process_tree.descendants(launcher, at_most=1000)):
        with contextlib.suppress(OSError):  # it has just ended
            names.append(Path(f"/proc/{pid}/comm").read_text())
    return names.count("has begun\n")


def below(pid: int, depth: int) -> list[int]:
    """Return the processes `depth` generations below one."""
    pids = [pid]
    for _ in range(depth):
        pids = [child for parent in pids for child in process_tree.children(parent)]
    return pids


def launchers() -> list[int]:
    """Return the launchers of all executors of this process."""
    return [
        pid
        for pid in process_tree.children(os.getpid())
        if b"code_judge_server.jail.launch.launcher" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]


def slots() -> list[int]:
    """Return the slots: the children of the zygotes below the launchers."""
    return [pid for launcher in launchers() for pid in below(launcher, 3)]


def kill_slots() -> None:
    """Kill all slots, and return when they have ended: a busy machine takes its time, and one that lives yet takes jobs."""
    for pidfd in [os.pidfd_open(pid) for pid in slots()]:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        assert select.select([pidfd], [], [], 60)[0]
        os.close(pidfd)
