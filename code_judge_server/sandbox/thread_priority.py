"""Scheduling priority for a thread that computes little at a time, and that others wait for."""

import ctypes
import os
import struct

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SCHED_FLAG_RESET_ON_FORK = 1
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of sched_setattr(2): size, policy, flags, nice, priority, runtime, deadline, period."""
_SLICE_NS = 100_000
"""The shortest slice that Linux gives."""
_NICE = -10
"""Nine times the CPU share of a program."""


def raise_thread_priority() -> None:
    """Let the calling thread run soon after it wakes up; its forks are not favoured.

    Since Linux 6.12 a thread with short time slices (no privilege needed, no larger share) has an earlier deadline than threads
    that run for long; before, this changes nothing. With the privilege (root, or CAP_SYS_NICE) the thread gets a larger share
    as
    well: a thread that has used up its share must wait, however short its slices. If an operator has given the server another
    nice value or scheduling policy, that stays.
    """
    if os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    if nice != 0 or not _set(nice=_NICE):
        _set(nice=nice)


def request_short_slices() -> None:
    """Let the calling thread run soon after it wakes up, with no larger share; its forks are not favoured."""
    if os.sched_getscheduler(0) == os.SCHED_OTHER:
        _set(nice=os.getpriority(os.PRIO_PROCESS, 0))


def _set(*, nice: int) -> bool:
    """Set the attributes; return whether the kernel agrees."""
    number = _SCHED_SETATTR.get(os.uname().machine)
    if number is None:
        return False
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _SCHED_FLAG_RESET_ON_FORK, nice, 0, _SLICE_NS, 0, 0)
    return ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0
