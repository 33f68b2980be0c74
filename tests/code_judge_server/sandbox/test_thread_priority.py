"""Scheduling attributes, as read back from the kernel by sched_getattr(2)."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, os, struct, sys
from code_judge_server.sandbox.thread_priority import raise_thread_priority

def nice_and_slice_ns():
    attributes = ctypes.create_string_buffer(48)
    assert ctypes.CDLL(None).syscall({"x86_64": 315, "aarch64": 275}[os.uname().machine], 0, attributes, 48, 0) == 0
    _, _, _, nice, _, slice_ns, _, _ = struct.unpack("=IIQiIQQQ", attributes.raw)
    return nice, slice_ns

if os.geteuid() == 0:
    os.setpriority(os.PRIO_PROCESS, 0, 0)  # however nice the tests are
if sys.argv[1] == "as user":
    os.setgid(65534)
    os.setuid(65534)
elif sys.argv[1] == "made nice":
    os.setpriority(os.PRIO_PROCESS, 0, 19)
print(*nice_and_slice_ns(), flush=True)
raise_thread_priority()
if os.fork() == 0:
    print(*nice_and_slice_ns(), flush=True)
    os._exit(0)
os.wait()
print(*nice_and_slice_ns())
"""
SHORT_NS = 100_000


def preferred(how: str) -> list[tuple[int, int]]:
    """Return nice value and slice before, of a child, and of the thread itself."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (6, 12):
        pytest.skip("this kernel has one length of slices for all")
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True)
    pairs = (line.split() for line in done.stdout.splitlines())
    return [(int(nice), int(slice_ns)) for nice, slice_ns in pairs]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may take a larger share")
def test_the_server_of_root_gets_priority_and_its_forks_do_not():
    before, of_child, own = preferred("as root")
    assert own == (-10, SHORT_NS)
    assert before == of_child
    assert before[0] == 0
    assert before[1] > SHORT_NS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
def test_the_server_of_a_user_gets_short_slices_alone():
    before, of_child, own = preferred("as user")
    assert own == (0, SHORT_NS) != before == of_child


def test_a_nice_value_that_an_operator_gave_stays():
    before, of_child, own = preferred("made nice")
    assert own == (19, SHORT_NS) != before == of_child
