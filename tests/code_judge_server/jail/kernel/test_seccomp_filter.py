"""System calls that the filter allows to jobs with the judge's user, tried in children that put it on."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

from code_judge_server.jail.kernel import jail_root, seccomp_filter
from code_judge_server.jail.native import compiled
from code_judge_server.jail.python import process_sharing

PUT_ON = """
import asyncio, json, os, resource, select, selectors, shutil, subprocess, sys
from code_judge_server.jail.kernel import syscalls
os.chdir(sys.argv[2])
with open("own", "w"), open("source", "w"):
    pass
syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
syscalls.apply_filter(os.pread(int(sys.argv[1]), 1 << 20, 0))
def tried(action, *arguments):
    try:
        action(*arguments)
    except OSError as error:
        return error.errno
"""


def run_held(code: str, folder: Path, *, namespaces: bool, own_users: bool) -> dict[str, int | None]:
    """Run code under the filter in `folder`; return its `result`."""
    filter_file = seccomp_filter.open_filter(namespaces=namespaces, memory_group=False, own_users=own_users)
    try:
        done = subprocess.run(
            [sys.executable, "-c", f"{PUT_ON}{code}\nprint(json.dumps(result))", str(filter_file), str(folder)],
            pass_fds=[filter_file],
            stdout=subprocess.PIPE,
            timeout=200,
            check=True,
        )
    finally:
        os.close(filter_file)
    return json.loads(done.stdout)


WATCH = """
result = {"epoll": tried(select.epoll), "poll": tried(select.poll().poll, 0)}
"""


def test_only_jobs_with_users_of_their_own_watch_by_epoll(tmp_path: Path) -> None:
    assert run_held(WATCH, tmp_path, namespaces=True, own_users=True) == {"epoll": None, "poll": None}
    assert run_held(WATCH, tmp_path, namespaces=True, own_users=False) == {"epoll": errno.ENOSYS, "poll": None}
    assert run_held(WATCH, tmp_path, namespaces=False, own_users=False) == {"epoll": errno.ENOSYS, "poll": None}


def test_a_new_interpreter_without_epoll_waits_by_poll(tmp_path: Path) -> None:
    code = """
program = '''
import asyncio, selectors
async def main():
    process = await asyncio.create_subprocess_exec("echo", "heard", stdout=asyncio.subprocess.PIPE)
    return selectors.DefaultSelector.__name__, (await process.communicate())[0].decode()
print(*asyncio.run(main()))
'''
result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
"""
    assert run_held(code, tmp_path, namespaces=True, own_users=False) == ["PollSelector", "heard"]


CHANGE_PROCESSES = """
child = subprocess.Popen(["/bin/sleep", "60"])
pid = child.pid
result = {
    "limit": tried(resource.prlimit, pid, resource.RLIMIT_CPU, (1, 1)),
    "affinity": tried(os.sched_setaffinity, pid, os.sched_getaffinity(0)),
    "scheduler": tried(os.sched_setscheduler, pid, os.SCHED_BATCH, os.sched_param(0)),
    "parameter": tried(os.sched_setparam, pid, os.sched_param(0)),
    "priority": tried(os.setpriority, os.PRIO_PROCESS, pid, 5),
    "priority of the group": tried(os.setpriority, os.PRIO_PGRP, 0, 5),
    "priority of the user": tried(os.setpriority, os.PRIO_USER, 0, 5),
    "own limit": tried(resource.setrlimit, resource.RLIMIT_CORE, (0, 0)),
    "own affinity": tried(os.sched_setaffinity, 0, os.sched_getaffinity(0)),
    "own scheduler": tried(os.sched_setscheduler, 0, os.SCHED_BATCH, os.sched_param(0)),
    "own priority": tried(os.setpriority, os.PRIO_PROCESS, 0, 6),
    "nice": tried(os.nice, 1),
}
child.kill()
"""


def test_without_namespaces_a_job_changes_no_process_but_itself(tmp_path: Path) -> None:
    results = run_held(CHANGE_PROCESSES, tmp_path, namespaces=False, own_users=False)
    others = {
        "limit",
        "affinity",
        "scheduler",
        "parameter",
        "priority",
        "priority of the group",
        "priority of the user",
    }
    assert {name for name, result in results.items() if result == errno.EPERM} == others
    assert {name for name, result in results.items() if result is None} == set(results) - others


CHANGE_FILES = """
os.chmod(os.curdir, 0o700)
own = os.open("own", os.O_RDONLY)
os.chmod("own", 0)
os.chmod(own, 0)
os.utime("own", (0, 0))
result = {
    "copy": tried(shutil.copy, "source", "copied"),
    "copy with times": tried(shutil.copy2, "source", "copied"),
    "owner": tried(os.chown, "own", os.getuid(), os.getgid()),
    "owner by descriptor": tried(os.chown, own, os.getuid(), os.getgid()),
    "attribute": tried(os.setxattr, "own", "user.name", b"value"),
    "removal of an attribute": tried(os.removexattr, "own", "user.name"),
}
"""


def test_without_namespaces_a_job_changes_no_rights_times_or_owners_of_files(tmp_path: Path) -> None:
    results = run_held(CHANGE_FILES, tmp_path, namespaces=False, own_users=False)
    assert results.pop("copy") is results.pop("copy with times") is None
    assert set(results.values()) == {errno.EPERM}
    status = (tmp_path / "own").stat()
    assert status.st_mode & 0o777 == 0o644
    assert status.st_mtime > 0
    assert run_held(CHANGE_FILES, tmp_path, namespaces=True, own_users=False)["owner"] is None
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0


def test_a_region_of_semaphores_may_be_as_large_as_the_filter_lets_it_be() -> None:
    assert process_sharing._REGION_BYTES == seccomp_filter.SHARED_REGION_MAX_BYTES


def test_the_helper_has_room_for_as_much_meminfo_as_the_slot_sends() -> None:
    source = Path(compiled.__file__).with_name("namespace_init.c").read_text()
    assert f"#define MEMINFO_MAX_BYTES {jail_root.MEMINFO_MAX_BYTES} " in source
