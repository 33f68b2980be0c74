"""Waiting for the end of processes.

A zombie has ended: when an orphan is reaped is up to the machine's first process, which in a container may take its time.
"""

import time
from collections.abc import Collection, Sequence

import psutil


def children_since(before: Collection[psutil.Process]) -> list[psutil.Process]:
    """Return this process's children that are not in `before`, with what they have started.

    Other tests of this process may have judges, whose own children come and go.
    """
    new = [child for child in psutil.Process().children() if child not in before]
    return [*new, *(process for child in new for process in descendants_of(child))]


def descendants_of(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def still_running(processes: Sequence[psutil.Process], *, within_s: float = 60.0) -> list[psutil.Process]:
    """Wait until all `processes` have ended, and return those that have not."""
    deadline = time.monotonic() + within_s
    while (running := [process for process in processes if not _has_ended(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return running


def _has_ended(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
