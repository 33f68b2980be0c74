"""Limits of a job: memory, tasks, disk and time, and the slot's report of their use."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from jail_driver import MIB, Jail, jail
from jail_tiers import EVERY_TIER, NAMESPACE_TIERS

from code_judge_server.jail import protocol
from code_judge_server.schemas import IsolationTier


@pytest.fixture(scope="module", params=NAMESPACE_TIERS)
def started(request: pytest.FixtureRequest) -> Iterator[Jail]:
    with jail(request.param) as running:
        yield running


@pytest.fixture(scope="module")
def grouped() -> Iterator[Jail]:
    if IsolationTier.A not in NAMESPACE_TIERS:
        pytest.skip("an ordinary user has no cgroup to write to")
    with jail(IsolationTier.A, num_slots=2) as running:
        yield running


def test_memory_is_held_by_the_group(grouped: Jail):
    ran = grouped.run_python("x = bytearray(200 << 20); print(len(x))", limits={"memory_bytes": 64 * MIB})
    assert ran.ended["signal"] == 9
    assert ran.ended["oom_kills"] == 1
    assert 60 * MIB < ran.ended["peak_memory_bytes"] < 72 * MIB


def test_memory_within_the_limit_is_no_kill_and_is_measured(grouped: Jail):
    ran = grouped.run_python("x = bytearray(100 << 20); print(len(x))", limits={"memory_bytes": 128 * MIB})
    assert ran.text == str(100 << 20)
    assert ran.ended["oom_kills"] == 0
    assert 100 * MIB < ran.ended["peak_memory_bytes"] < 112 * MIB


def test_the_peak_of_a_job_is_not_that_of_the_one_before(grouped: Jail):
    grouped.run_python("bytearray(100 << 20)")
    assert grouped.run_python("print(1)").ended["peak_memory_bytes"] < 32 * MIB


def test_files_count_as_memory_and_are_freed_with_the_job(grouped: Jail):
    fill = "open('/tmp/x', 'wb').write(bytes(100 << 20)); print('written')"
    limits = {"memory_bytes": 160 * MIB, "disk_bytes": 128 * MIB}
    for _ in range(3):
        ran = grouped.run_python(fill, limits=limits)
        assert (ran.text, ran.ended["oom_kills"]) == ("written", 0)
    assert grouped.run_python(fill, limits={**limits, "memory_bytes": 64 * MIB}).ended["oom_kills"] == 1


def test_a_killed_child_counts_though_the_job_itself_ends_well(grouped: Jail):
    code = """
import os
if os.fork() == 0:
    x = bytearray(200 << 20)
    os._exit(0)
print(os.WTERMSIG(os.wait()[1]))
"""
    ran = grouped.run_python(code, limits={"memory_bytes": 64 * MIB})
    assert (ran.text, ran.ended["exit_code"], ran.ended["oom_kills"]) == ("9", 0, 1)


def test_tasks_are_held_by_the_group(grouped: Jail):
    code = """
import os, time
made = 1
try:
    while made < 100:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except BlockingIOError:
    print(made)
"""
    ran = grouped.run_python(code, limits={"max_tasks": 20})
    assert ran.text == "20"
    assert ran.ended["tasks_refused"] == 1


def test_a_swarm_gets_no_more_of_a_core_than_an_honest_program_in_another_slot(grouped: Jail):
    groups = grouped.plan.cgroups
    assert groups is not None
    if not groups.has_shares:
        pytest.skip("no controller `cpu` here")
    on_one_core = f"import os, time\nos.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    swarm = "for _ in range(40):\n    if os.fork() == 0:\n        os.setsid()\n        break\nwhile True: pass"
    honest = "end = time.process_time() + 0.6\nwhile time.process_time() < end: pass"
    slots = grouped.slot(0), grouped.slot(1)
    counter = groups.cpu_file(0)
    running = threading.Thread(target=grouped.run_python, args=(on_one_core + swarm,))
    running.start()
    time.sleep(1.0)
    before_s = cpu_time_s(counter)
    ran = grouped.run_python(on_one_core + honest, slot=1)
    used_by_swarm_s = cpu_time_s(counter) - before_s
    protocol.send(slots[0].end, {"kind": "kill"})
    running.join()
    assert ran.ended["exit_code"] == 0
    assert used_by_swarm_s < 3 * ran.ended["cpu_time_s"]


def cpu_time_s(counter: Path) -> float:
    text = counter.read_text()
    return int(text.split()[1]) / 1e6 if text.startswith("usage_usec") else int(text) / 1e9


def test_tasks_are_held_without_a_group(started: Jail):
    code = """
import os, time
made = 1
try:
    while made < 200:
        if os.fork() == 0:
            time.sleep(100)
        made += 1
except BlockingIOError:
    pass
print(made)
"""
    assert 20 <= int(started.run_python(code, limits={"max_tasks": 20}).text) <= 30


@pytest.mark.parametrize("folder", ["/sandbox", "/tmp", "/dev/shm"])
def test_the_disk_quota_holds_in_each_folder_and_over_all(started: Jail, folder: str):
    code = f"""
import errno, os
open('/sandbox/first', 'wb').write(bytes(3 << 20))
written, file = 0, os.open('{folder}/x', os.O_CREAT | os.O_WRONLY)
try:
    while True:
        written += os.write(file, bytes(1 << 16))
except OSError as error:
    print(errno.errorcode[error.errno], written)
"""
    word, written = started.run_python(code, limits={"disk_bytes": 6 * MIB}).text.split()
    assert word == "ENOSPC"
    assert 2.9 * MIB < int(written) < 3 * MIB


def test_the_number_of_files_is_bounded(started: Jail):
    code = """
import errno
try:
    for number in range(100000):
        open(f'/tmp/{number}', 'w').close()
except OSError as error:
    print(errno.errorcode[error.errno], number)
"""
    word, count = started.run_python(code, limits={"disk_bytes": 4 * MIB}).text.split()
    assert word == "ENOSPC"
    assert 900 < int(count) <= 1024


def test_a_file_larger_than_the_quota_is_refused_by_its_size(started: Jail):
    code = "import os; fd = os.open('x', os.O_CREAT | os.O_WRONLY); os.pwrite(fd, b'x', 10 << 20)"
    ran = started.run_python(code, limits={"disk_bytes": MIB})
    assert ran.ended["exit_code"] == 1 or ran.ended["signal"] == 25
    assert b"[Errno 27]" in ran.stderr or b"File size" in ran.stderr or ran.ended["signal"] == 25


def test_cpu_time_has_a_hard_limit_behind_the_servers(started: Jail):
    ran = started.run_python("while True: pass", limits={"cpu_time_s": 0.2})
    assert ran.ended["signal"] in (9, 24)
    assert 1.0 < ran.ended["cpu_time_s"] < 3.5


def test_cpu_time_of_children_threads_and_orphans_counts(started: Jail):
    burn = (
        "import time, os\ndef burn():\n    end = time.thread_time() + 0.2\n    while time.thread_time() < end: pass\n"
    )
    in_child = f"{burn}if os.fork() == 0:\n    burn(); os._exit(0)\nos.wait()"
    in_thread = f"{burn}import threading; threading.Thread(target=burn).start()"
    wait = "while not os.path.exists('/tmp/x'): time.sleep(0.01)"
    in_orphan = f"{burn}if os.fork() == 0:\n    os.setsid(); burn(); open('/tmp/x', 'w'); time.sleep(100)\n{wait}"
    for code in (in_child, in_thread, in_orphan):
        assert 0.2 <= started.run_python(code).ended["cpu_time_s"] < 0.5, code


@pytest.mark.parametrize("tier", EVERY_TIER)
def test_a_kill_ends_hidden_processes(tier: IsolationTier):
    code = """
import os, signal, time
for number in range(1, 32):
    if number not in (9, 19):
        signal.signal(number, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(1000)
time.sleep(1000)
"""
    with jail(tier) as running:
        running.run_python("pass") if tier is not IsolationTier.C else None
        ran = running.run_python(code, kill_after_s=0.3)
        assert ran.ended["signal"] == 9
        assert running.run_python("print('next')").text == "next"


def test_without_a_group_no_memory_can_be_taken_that_is_not_mapped():
    code = """
import ctypes, mmap, os
for take in (lambda: mmap.mmap(-1, (4 << 20) + 1), lambda: os.memfd_create('x'), lambda: os.open('/dev/zero', os.O_RDWR)):
    try:
        print(take())
    except OSError:
        pass
print(ctypes.CDLL(None).shmget(0, 10, 0o1600), open('/dev/zero', 'rb').read(3))
"""
    with jail(IsolationTier.B) as running:
        assert running.run_python(code).text == r"-1 b'\x00\x00\x00'"


def test_multiprocessing_works_with_its_managers_and_shared_memory(started: Jail):
    code = """
import multiprocessing, multiprocessing.shared_memory
memory = multiprocessing.shared_memory.SharedMemory(create=True, size=10)
with multiprocessing.Pool(2) as pool, multiprocessing.Manager() as manager:
    print(pool.map(abs, [1, -2]), manager.list([3]), memory.size > 0, multiprocessing.Array('i', 3)[:])
memory.unlink()
"""
    assert started.run_python(code).text == "[1, 2] [3] True [0, 0, 0]"
