"""Shared anonymous memory: small regions are allowed everywhere, others only where a control group counts them."""

import errno

import pytest
from jail_tiers import in_tiers_that_isolate
from judge_process import JudgeProcess
from session_client import Session

pytestmark = in_tiers_that_isolate

MIB = 1024 * 1024
LIMITS = {"memory_bytes": 128 * MIB, "cpu_time_s": 10, "wall_time_s": 30}
SHARE = """
import mmap, os, time
areas = [mmap.mmap(-1, size) for size in (13, 1 << 20, 4 << 20)]
if os.fork() == 0:
    for area in areas:
        area.write(b"hello world!")
    os._exit(0)
os.wait()
time.sleep(0.4)
print([area[:12].decode() for area in areas])
"""
HIDE = """
import ctypes, mmap, time
PIECE, PAGE, UNREADABLE = 4 << 20, 4096, {unreadable}
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
if UNREADABLE:
    libc.prctl(4, 0, 0, 0, 0)
for _ in range(48):
    piece = libc.mmap(None, PIECE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(piece, 1, PIECE)
    libc.munmap(piece + PAGE, PIECE - PAGE)
time.sleep(2)
print("192 MiB of which 192 KiB are mapped")
"""
TAKE = """
import ctypes, mmap, os
def huge_pages():
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_ssize_t
    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | 0x40000 | 30 << 26
    if libc.mmap(None, 4096, 3, flags, -1, 0) == -1:
        raise OSError(ctypes.get_errno(), "huge pages")
def zero():
    with open("/dev/zero", "r+b", buffering=0) as file:
        mmap.mmap(file.fileno(), 1 << 30)
for take in (lambda: mmap.mmap(-1, (4 << 20) + 1), huge_pages, zero, lambda: os.memfd_create("x")):
    try:
        take()
        print("had")
    except OSError as error:
        print(error.errno)
"""


def counts_memory(judge: JudgeProcess) -> bool:
    return judge.http.get("/v1/health").json()["memory_enforcement"] == "cgroup"


def test_processes_share_small_regions(judge_of_each_tier: JudgeProcess) -> None:
    verdict = judge_of_each_tier.judge(code=SHARE, limits=LIMITS)
    assert verdict["stdout"] == f"{['hello world!'] * 3}\n", verdict


@pytest.mark.parametrize("unreadable", [False, True])
def test_a_region_is_charged_in_full_while_any_of_it_is_mapped(
    judge_of_each_tier: JudgeProcess, unreadable: bool
) -> None:
    verdict = judge_of_each_tier.judge(code=HIDE.format(unreadable=unreadable), limits=LIMITS)
    assert verdict["status"] == "memory_limit_exceeded", verdict
    assert verdict["peak_memory_bytes"] < 256 * MIB, "a charge for what cannot be read is not reported"


def test_memory_that_nothing_would_count_is_refused(judge_of_each_tier: JudgeProcess) -> None:
    words = judge_of_each_tier.judge(code=TAKE, limits=LIMITS)["stdout"].split()
    if counts_memory(judge_of_each_tier):
        assert (words[0], words[3]) == ("had", "had"), words
    else:
        refused = {str(errno.EPERM), str(errno.EACCES), str(errno.EROFS)}
        assert set(words[:3]) <= refused, words
        assert words[3] == str(errno.ENOSYS), words


def test_a_session_has_them_too(judge_of_each_tier: JudgeProcess) -> None:
    if judge_of_each_tier.http.get("/v1/health").json()["isolation"] == "C":
        pytest.skip("tier C has no sessions")
    session = Session(judge_of_each_tier, limits={"memory_bytes": 128 * MIB})
    cell = session.cell(SHARE)
    session.close()
    assert (cell["status"], cell["stdout"]) == ("accepted", f"{['hello world!'] * 3}\n"), cell
