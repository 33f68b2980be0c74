"""A program that gets no core does not count as asleep: lending its place would crowd the machine more."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator

from code_judge_server.jail_executor.meters import Usage
from code_judge_server.jail_executor.running_job import ASLEEP_AFTER_SAMPLES, SAMPLE_INTERVAL_S, RunningJob
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.executor import Job, JobLimits

LIMITS = JobLimits(
    cpu_time_s=10, wall_time_s=1000, memory_bytes=1 << 30, max_tasks=10, disk_bytes=1 << 20, output_bytes=1000
)
IN_A_THREAD = """
import sys, threading, time
def spin():
    while True: pass
threading.Thread(target=spin, daemon=True).start()
print("begun", flush=True)
time.sleep(600)
"""
SLEEPING = """
import threading, time
threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
print("begun", flush=True)
time.sleep(600)
"""


class IdleMeter:
    """Meter of a job that gets no CPU time."""

    def restart(self) -> None: ...

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        return Usage(cpu_time_s=0.0)

    def close(self) -> None: ...


def job_without_cpu_time(*, wants_core: bool) -> RunningJob:
    return RunningJob(
        Job(argv=("true",), limits=LIMITS),
        meter=IdleMeter(),
        wants_core=lambda: wants_core,
        kill=lambda: None,
        catch_up=lambda: None,
        give_up=lambda _: None,
    )


def sample(job: RunningJob, number: int) -> None:
    for n in range(1, number + 1):
        job._sample(job._started_at + n * SAMPLE_INTERVAL_S)


async def test_a_job_that_gets_no_core_although_it_wants_one_is_not_asleep() -> None:
    starved, asleep = (job_without_cpu_time(wants_core=wants_core) for wants_core in (True, False))
    for job in (starved, asleep):
        sample(job, ASLEEP_AFTER_SAMPLES)
    assert not starved.is_asleep
    assert asleep.is_asleep


@contextlib.contextmanager
def running(code: str) -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        yield process.pid
    finally:
        process.kill()
        process.communicate()


def test_a_thread_that_computes_is_runnable_whether_it_has_a_core_or_not() -> None:
    with running(IN_A_THREAD) as pid:
        assert all(process_tree.any_runnable([pid], at_most=2) for _ in range(20))
        assert not process_tree.any_runnable([pid], at_most=0)


def test_sleeping_and_ended_threads_are_not_runnable() -> None:
    with running(SLEEPING) as pid:
        give_up_at = time.monotonic() + 100
        while process_tree.any_runnable([pid], at_most=10):  # on its way to sleep
            assert time.monotonic() < give_up_at
            time.sleep(0.05)
    assert not process_tree.any_runnable([pid], at_most=10)
