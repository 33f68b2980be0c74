"""Slots and the inits of their jobs, which need a core only for a moment, are scheduled next; jobs are not."""

import contextlib
import ctypes
import os
import struct
import threading
from pathlib import Path

import httpx
import pytest
from jail_tiers import NAMESPACE_TIERS
from judge_process import WITHOUT_MODULES, JudgeProcess, running_judge, wait_until

SHORT_NS = 100_000
SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}[os.uname().machine]
SLEEPER = "import time\ntime.sleep(60)"


def slice_ns(pid: int) -> int:
    """Return the length of a process's time slices, 0 if this kernel has one for all."""
    attributes = ctypes.create_string_buffer(48)
    if ctypes.CDLL(None).syscall(SYS_SCHED_GETATTR, pid, attributes, 48, 0) != 0:
        raise ProcessLookupError(pid)
    return struct.unpack("=IIQiIQQQ", attributes.raw)[5]


def below(pid: int) -> list[int]:
    pids = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return pids + [process for child in pids for process in below(child)]


def command(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")


@pytest.mark.skipif(slice_ns(0) == 0, reason="this kernel has one length of slices for all")
def test_slots_and_inits_have_short_slices_and_jobs_those_of_everybody(tmp_path: Path) -> None:
    settings = ["--num-slots", "1", "--spare-slots", "0", "--max-sessions", "0", *WITHOUT_MODULES]
    with running_judge(tmp_path, *settings, isolation=NAMESPACE_TIERS[0]) as judge:
        threading.Thread(target=run_sleeper, args=(judge,), daemon=True).start()
        wait_until(lambda: len(sleeping_jobs(judge.process.pid)) == 1, timeout_s=60)
        (job,) = sleeping_jobs(judge.process.pid)
        inits = [pid for pid in below(judge.process.pid) if command(pid).startswith("init ")]
        of_job = [pid for pid in inits if below_namespace(pid) == 1]
        slot = parent(job)
        assert len(inits) >= 2, "the helper of each slot, and the init of the job"
        assert {slice_ns(pid) for pid in inits} == {SHORT_NS}
        assert len(of_job) == 1
        assert slice_ns(slot) == SHORT_NS
        assert slice_ns(job) == slice_ns(os.getpid()) > SHORT_NS


def run_sleeper(judge: JudgeProcess) -> None:
    with contextlib.suppress(httpx.HTTPError):  # the judge is killed before the program ends
        judge.http.post("/v1/submissions", json={"id": "sleeper", "code": SLEEPER})


def sleeping_jobs(server: int) -> list[int]:
    """Return the programs: the processes that are the second of their namespace."""
    return [pid for pid in below(server) if below_namespace(pid) == 2]


def below_namespace(pid: int) -> int:
    """Return the pid of a process in its innermost namespace, if that is a job's; otherwise 0."""
    numbers = numbers_of(pid)
    return numbers[-1] if len(numbers) == len(numbers_of(os.getpid())) + 2 else 0  # the launcher's, and the job's


def numbers_of(pid: int) -> list[int]:
    """Return the pids of a process in all of its namespaces, from this one inwards."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return [int(number) for number in next(line for line in lines if line.startswith("NSpid:")).split()[1:]]


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
