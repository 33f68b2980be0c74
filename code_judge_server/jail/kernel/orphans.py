"""Tier C: the processes that jobs leave behind when their slot, zygote or launcher is killed; no pid namespace ends them.

A process that loses its parent falls to the nearest subreaper above, which kills it here: below subreapers no `setsid`, double
fork or ignored signal leads out. Unlike `code_judge_server.sandbox.process_tree` this is loaded in every zygote, so it imports
next to nothing.
"""

import contextlib
import os
import signal
import time
from collections.abc import Collection
from typing import NoReturn

from code_judge_server.jail.kernel import syscalls
from code_judge_server.sandbox.process_tree import children

_PAUSE_S = 0.001


def adopt() -> None:
    """Adopt orphans below this process."""
    syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)


def kill_below(pid: int, *, keep: Collection[int] = ()) -> None:
    """Kill everything below `pid` except its children `keep`; each process is killed before its children are listed, so that
    it forks no more.
    """
    doomed = [child for child in children(pid) if child not in keep]
    for descendant in doomed:  # grows while it is walked
        try:
            os.kill(descendant, signal.SIGKILL)
        except ProcessLookupError:
            continue
        doomed.extend(children(descendant))


def end_all(keep: Collection[int] = ()) -> float:
    """Kill everything below this process except its children `keep`, wait until it is gone, and return its CPU time in s."""
    cpu_time_s = 0.0
    while doomed := [pid for pid in children(os.getpid()) if pid not in keep]:
        kill_below(os.getpid(), keep=keep)
        time.sleep(_PAUSE_S)
        for pid in doomed:
            with contextlib.suppress(ChildProcessError):  # a signal handler was faster
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                cpu_time_s += usage.ru_utime + usage.ru_stime if ended else 0.0
    return cpu_time_s


def reap(*, keep: Collection[int]) -> float:
    """Reap ended children of this process except `keep`; return their CPU time in s."""
    cpu_time_s = 0.0
    for pid in children(os.getpid()):
        if pid not in keep:
            with contextlib.suppress(ChildProcessError):
                ended, _, usage = os.wait4(pid, os.WNOHANG)
                cpu_time_s += usage.ru_utime + usage.ru_stime if ended else 0.0
    return cpu_time_s


def end_all_and_exit(*_: object) -> NoReturn:
    """Kill everything below this process, and exit; usable as a signal handler."""
    end_all()
    os._exit(0)
