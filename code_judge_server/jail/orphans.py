"""Tier C: what jobs leave behind when their slot, zygote or launcher is killed, where no pid namespace ends it.

A process that loses its parent falls to the nearest subreaper above, which ends it here: below subreapers no
`setsid`, double fork or ignored signal leads out. Unlike `code_judge_server.process_tree` this is in every zygote, so that it
imports next to nothing.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import NoReturn

from code_judge_server.jail import syscalls

_PAUSE_S = 0.001


def adopt() -> None:
    """Have what is orphaned below this process become its child.

    Raises:
        OSError: the kernel refuses.
    """
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)


def kill_below(pid: int, *, keep: Collection[int] = ()) -> None:
    """Kill all below `pid` but its children `keep`: each before its own children are looked for, so that it makes no
    more.
    """
    doomed = [child for child in _children(pid) if child not in keep]
    for descendant in doomed:  # grows while it is walked
        try:
            os.kill(descendant, signal.SIGKILL)
        except ProcessLookupError:
            continue
        doomed.extend(_children(descendant))


def end_all(keep: Collection[int] = ()) -> float:
    """Kill all below this process but its children `keep`, wait until it is gone, and return its CPU time in s."""
    cpu_time_s = 0.0
    while doomed := [pid for pid in _children(os.getpid()) if pid not in keep]:
        kill_below(os.getpid(), keep=keep)
        time.sleep(_PAUSE_S)
        for pid in doomed:
            with contextlib.suppress(ChildProcessError):  # a signal handler was faster
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                cpu_time_s += usage.ru_utime + usage.ru_stime if ended else 0.0
    return cpu_time_s


def reap(*, keep: Collection[int]) -> float:
    """Wait for the children of this process that have ended, but for `keep`; return their CPU time in s."""
    cpu_time_s = 0.0
    for pid in _children(os.getpid()):
        if pid not in keep:
            with contextlib.suppress(ChildProcessError):
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                cpu_time_s += usage.ru_utime + usage.ru_stime if ended else 0.0
    return cpu_time_s


def end_all_and_exit(*_: object) -> NoReturn:
    """End all below this process, and itself; fit to handle a signal."""
    end_all()
    os._exit(0)


def _children(pid: int) -> list[int]:
    """Return the children of a process of one thread or more, none if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listing:
                found.extend(map(int, listing.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended while we looked: its children fall to a subreaper, and are found there
    return found
