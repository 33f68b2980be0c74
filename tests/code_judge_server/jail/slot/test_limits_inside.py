"""A program's changes to its own limits, and the depth of its stack, as in plain Python and contests."""

import shutil

import pytest
from judge_process import JudgeProcess

RAISE_LIMITS = """
import resource
before = resource.getrlimit(resource.RLIMIT_STACK)
resource.setrlimit(resource.RLIMIT_STACK, (512 << 20, resource.RLIM_INFINITY))
resource.setrlimit(resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
print("raised")
"""
DEEP_IN_THREADS = """
import sys, threading
sys.setrecursionlimit(10**6)
threading.stack_size(256 << 20)
def depth(n):
    return 0 if n == 0 else 1 + depth(n - 1)
results = []
thread = threading.Thread(target=lambda: results.append(depth(50_000)))
thread.start()
thread.join()
threading.stack_size(0)
waiting = threading.Event()
others = [threading.Thread(target=waiting.wait) for _ in range(40)]
for other in others:
    other.start()
waiting.set()
for other in others:
    other.join()
print(results)
"""
ORPHANS = """
import os, time
for _ in range(100):
    if os.fork() == 0:
        if os.fork() == 0:
            time.sleep(0.01)
        os._exit(0)
    os.wait()
    time.sleep(0.01)
print("done")
"""
DEEP_IN_CPP = """
#include <cstdio>
int depth(int n) { volatile char frame[1000]; frame[0] = 1; return n == 0 ? 0 : frame[0] + depth(n - 1); }
int main() { std::printf("%d", depth(150000)); }
"""
WITHOUT_END_IN_CPP = """
char *volatile kept;
int depth(long n) { char frame[1000]; kept = frame; frame[n % 1000] = 1; return depth(n + 1) + kept[0]; }
int main() { return depth(0); }
"""


def test_a_program_may_raise_its_soft_limits(judge_of_each_tier: JudgeProcess) -> None:
    verdict = judge_of_each_tier.judge(code=RAISE_LIMITS)
    assert verdict["stdout"] == "raised\n", verdict


def test_orphans_that_have_ended_do_not_count(judge_of_each_tier: JudgeProcess) -> None:
    verdict = judge_of_each_tier.judge(code=ORPHANS, limits={"max_tasks": 32})
    assert (verdict["status"], verdict["stdout"]) == ("accepted", "done\n"), verdict


@pytest.mark.parametrize("shadowed", [False, True], ids=["warm", "cold"])
def test_python_recurses_deeply_in_threads_and_has_many(judge_of_each_tier: JudgeProcess, shadowed: bool) -> None:
    files = {"string.py": ""} if shadowed else {}  # it then starts in its own interpreter
    verdict = judge_of_each_tier.judge(code=DEEP_IN_THREADS, files=files, limits={"max_tasks": 64})
    assert verdict["stdout"] == "[50000]\n", verdict


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_stack_may_grow_up_to_the_memory_limit(judge_of_each_tier: JudgeProcess) -> None:
    limits = {"memory_bytes": 256 << 20}
    deep = judge_of_each_tier.judge(language="cpp", code=DEEP_IN_CPP, limits=limits)
    assert deep["stdout"] == "150000", deep
    endless = judge_of_each_tier.judge(language="cpp", code=WITHOUT_END_IN_CPP, limits=limits)
    assert endless["status"] == "memory_limit_exceeded", endless
