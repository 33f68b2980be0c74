"""Reads and writes of a slot in its control group; here plain files replace those of the kernel's version 2."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from code_judge_server.jail.kernel.cgroups import Cgroups, NoCgroupsError, make_cgroups
from code_judge_server.jail.slot.slot_cgroup import SlotCgroup

MIB = 1024 * 1024
FILES = {
    "cgroup.procs": "",
    "memory.max": "max\n",
    "memory.swap.max": "max\n",
    "memory.current": f"{5 * MIB}\n",
    "memory.peak": f"{50 * MIB}\n",
    "memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 1\noom_group_kill 0\n",
    "pids.max": "max\n",
    "pids.current": "3\n",
    "pids.events": "max 7\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_PATH)
    yield descriptor
    os.close(descriptor)


def test_version_2_limits_include_the_memory_of_the_slot(folder: Path, opened: int):
    SlotCgroup(2, {"": opened}).start_job(64 * MIB, 20)
    assert (folder / "cgroup.procs").read_text() == "0"
    assert (folder / "memory.swap.max").read_text().startswith("0")
    assert int((folder / "memory.max").read_text()) == (64 + 8) * MIB
    assert (folder / "pids.max").read_text().startswith("24")


def test_version_2_counts_only_since_the_start_of_the_job(folder: Path, opened: int):
    group = SlotCgroup(2, {"": opened})
    group.start_job(64 * MIB, 20)
    (folder / "memory.peak").write_text(f"{35 * MIB}\n")
    (folder / "memory.events").write_text("oom 2\noom_kill 3\n")
    (folder / "pids.events").write_text("max 8\n")
    assert group.end_job() == {"oom_kills": 2, "peak_memory_bytes": 30 * MIB, "tasks_refused": 1}


def test_without_a_resettable_peak_none_is_reported(folder: Path, opened: int):
    (folder / "memory.peak").unlink()
    group = SlotCgroup(2, {"": opened})
    group.start_job(64 * MIB, 20)
    assert group.end_job()["peak_memory_bytes"] is None


def test_files_of_the_server_lie_where_the_kernel_has_them():
    two = Cgroups(version=2, folders={"": Path("/cg/j")})
    assert two.cpu_file(3) == Path("/cg/j/slot-3/cpu.stat")
    cgroups = Cgroups(version=1, folders={"memory": Path("/m/j"), "pids": Path("/p/j"), "cpuacct": Path("/c/j")})
    assert cgroups.cpu_file(0) == Path("/c/j/slot-0/cpuacct.usage")


@pytest.mark.parametrize(
    ("version", "controller", "name", "of_a_process"),
    [(1, "cpu", "cpu.shares", 1024), (1, "cpuacct", "cpu.shares", 1024), (2, "", "cpu.weight", 100)],
)
def test_the_slots_together_weigh_as_much_as_a_process_on_each_core(
    folder: Path, version: int, controller: str, name: str, of_a_process: int
):
    groups = Cgroups(version=version, folders={controller: folder})
    groups.weigh()
    assert not groups.has_shares
    (folder / name).write_text("1\n")
    groups.weigh()
    assert int((folder / name).read_text()) == of_a_process * len(os.sched_getaffinity(0))


def test_groups_exist_until_they_are_removed():
    try:
        groups = make_cgroups()
    except NoCgroupsError as error:
        pytest.skip(str(error))
    groups.make_slots(2)
    folders = [*groups.folders.values(), *groups.slot_folders(1).values()]
    assert all(folder.is_dir() for folder in folders)
    groups.remove()
    assert not any(folder.exists() for folder in folders)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a pid namespace")
def test_a_server_in_another_container_leaves_the_groups_of_this_one_alone():
    try:
        groups = make_cgroups()
    except NoCgroupsError as error:
        pytest.skip(str(error))
    groups.make_slots(1)
    program = "from code_judge_server.jail.kernel.cgroups import make_cgroups; make_cgroups().remove()"
    subprocess.run(["unshare", "--pid", "--fork", sys.executable, "-c", program], check=True)
    assert all(folder.is_dir() for folder in (*groups.folders.values(), *groups.slot_folders(0).values()))
    groups.remove()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes control groups")
def test_a_lock_on_the_parent_does_not_block_the_start():
    try:
        groups = make_cgroups()
    except NoCgroupsError as error:
        pytest.skip(str(error))
    lock = os.open(next(iter(groups.folders.values())).parent, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    another = make_cgroups()
    os.close(lock)
    assert all(folder.is_dir() for folder in (*groups.folders.values(), *another.folders.values()))
    groups.remove()
    another.remove()
