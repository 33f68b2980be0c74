"""Memory of a process whose first thread has exited while others continue: the kernel shows it only for those threads."""

import pytest
from jail_tiers import in_tiers_that_isolate
from judge_process import JudgeProcess
from session_client import Session

MIB = 1024 * 1024
LIMITS = {"memory_bytes": 128 * MIB, "cpu_time_s": 10, "wall_time_s": 30}
GROW_WITHOUT_LEADER = """
import ctypes, os, threading, time
SYS_exit = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
def grow():
    kept = []
    for _ in range(100):
        kept.append(b"x" * (4 << 20))
        time.sleep(0.02)
if os.fork() == 0:
    threading.Thread(target=grow).start()
    ctypes.CDLL(None).syscall(SYS_exit, 0)
os.wait()
"""


def test_a_process_without_its_leader_is_held_to_the_memory_limit(judge_of_each_tier: JudgeProcess) -> None:
    verdict = judge_of_each_tier.judge(code=GROW_WITHOUT_LEADER, limits=LIMITS)
    assert verdict["status"] == "memory_limit_exceeded", verdict
    assert 100 * MIB < verdict["peak_memory_bytes"] < 400 * MIB


@in_tiers_that_isolate
def test_a_session_without_its_leader_is_held_to_the_memory_limit(judge_of_each_tier: JudgeProcess) -> None:
    if judge_of_each_tier.http.get("/v1/health").json()["isolation"] == "C":
        pytest.skip("tier C has no sessions")
    session = Session(judge_of_each_tier, limits={"memory_bytes": 128 * MIB})
    cell = session.cell(GROW_WITHOUT_LEADER)
    session.close()
    assert cell["status"] == "memory_limit_exceeded", cell
