"""Resources of a running job, as the kernel counts them."""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from code_judge_server.jail.kernel.seccomp_filter import SHARED_REGION_MAX_BYTES
from code_judge_server.jail.launch.loopback import BUFFER_BYTES_PER_SOCKET
from code_judge_server.sandbox import process_tree

_PAUSE = 4
"""Pause after a count, in units of its duration: a job keeps the server busy for at most a fifth of a core."""


Count = Callable[..., int]
"""A function of `process_tree`: takes processes and `enough`, and gives their bytes, or those of the first that exceed it."""


class MemoryCounts:
    """Counts memory of one job's processes, repeatedly while it is asked for, at least `pause_s` apart."""

    def __init__(self, count: Count, *, pause_s: float = 0.0) -> None:
        self._count = count
        self._pause_s = pause_s
        self._latest = 0
        self._running: Future[int] | None = None
        self._took_s = 0.0
        self._next_at = 0.0

    def latest(self, pids: list[int], *, enough: int) -> int:
        """Return the result of the last count, 0 at first, and start to count `pids`, up to `enough` bytes, if that is due.

        Raises:
            OSError: the processes could not be read.
        """
        now = time.monotonic()
        if self._running is not None and self._running.done():
            self._latest = self._running.result()
            self._next_at = now + max(self._pause_s, _PAUSE * self._took_s)
            self._running = None
        if self._running is None and now >= self._next_at:
            running = self._running = Future()
            threading.Thread(target=self._run, args=(running, pids, enough), name="memory counts", daemon=True).start()
        return self._latest

    def _run(self, running: "Future[int]", pids: list[int], enough: int) -> None:
        began_at = time.monotonic()
        try:
            num_bytes = self._count(pids, enough=enough)
        except OSError as error:
            running.set_exception(error)
            return
        self._took_s = time.monotonic() - began_at
        running.set_result(num_bytes)


_Process = tuple[int, int]
"""Process id, and start time."""


class UnwaitedCpu:
    """Adds up the CPU time of ended processes that no living process was charged with.

    A process is counted at the second sample without it: it may have been missed while it changed its parent, or waited for
    after its parent was read. Processes that start and end between two samples are not seen.
    """

    def __init__(self) -> None:
        self._seen: dict[_Process, tuple[int, int]] = {}
        self._gone: dict[_Process, int] = {}
        self._paid = 0
        self._reaped = 0
        self._lost = 0

    def update(self, ticks: Mapping[_Process, tuple[int, int]], *, reaped: int) -> int:
        """Return the CPU time lost so far, in the unit of the arguments: the CPU time of each living process and of the
        children it has waited for, and that of the children that the common ancestor has waited for.
        """
        before = self._reaped + sum(self._seen[process][1] for process in ticks if process in self._seen)
        paid = reaped + sum(waited for _, waited in ticks.values()) - before
        owed = sum(used for process, used in self._gone.items() if process not in ticks) - self._paid
        self._lost += max(0, owed - paid)
        self._paid = max(0, paid - max(0, owed))
        self._gone = {process: sum(used) for process, used in self._seen.items() if process not in ticks}
        self._seen, self._reaped = dict(ticks), reaped
        return self._lost


class PeakMemory:
    """A peak that can be reset; where the kernel cannot reset it (version 2 before Linux 6.12), the peak of all time.

    Args:
        file: `memory.max_usage_in_bytes` (version 1) or `memory.peak` (version 2, missing before Linux 5.19); None if nothing
            counts it.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._fd = -1

    def restart(self) -> None:
        """Reset the peak."""
        self.close()
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._fd, b"0")  # version 2 resets it for this descriptor only

    def bytes(self) -> int:
        """Return the peak; 0 if nothing counts it."""
        if self._file is None:
            return 0
        with contextlib.suppress(OSError):
            return int(os.pread(self._fd, 64, 0) if self._fd >= 0 else self._file.read_bytes())
        return 0

    def close(self) -> None:
        """Close its file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OomKills:
    """The OOM kills in the group that the slots of one number share."""

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._num_known = count()

    def take_new(self) -> bool:
        """Return whether there were any since the last call."""
        before, self._num_known = self._num_known, self._count()
        return self._num_known > before


_SLOT_CPU_TIME_S = 0.01
"""Most CPU time that the slot itself needs for a job, in the same cgroup."""
_SLOT_TASKS = 2
"""Tasks of the helper of a slot and the init of a job."""
_PAUSE_OF_KERNEL_MEMORY_S = 0.2
"""Pause between two counts of kernel memory for a job's mappings; one costs as much as the rest of a sample."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resources of a job at one moment; 0 where the kernel itself enforces the limit."""

    cpu_time_s: float
    """CPU time of the job and everything below it, since it started."""
    memory_bytes: int = 0
    assumed_bytes: int = 0
    """Part of `memory_bytes` that was not measured: the charge for processes that made themselves unreadable."""
    num_tasks: int = 0
    """Processes and threads."""

    @property
    def measured_bytes(self) -> int:
        """Memory without what was assumed; the one to report."""
        return self.memory_bytes - self.assumed_bytes


class Meter(Protocol):
    """Reads the resources of the job that runs in one slot."""

    def restart(self) -> None:
        """Start to count for the next job."""
        ...

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        """Return the usage of the running job, only as exact as these limits need."""
        ...

    def close(self) -> None:
        """Close its files."""
        ...


class CgroupMeter:
    """CPU time from the cgroup of a slot, which itself enforces the limits of memory and tasks.

    Args:
        path: `cpuacct.usage` (nanoseconds) of cgroup v1 or `cpu.stat` (`usage_usec 12`) of v2.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._started_at_s = 0.0

    def restart(self) -> None:
        """Start to count for the next job."""
        self._started_at_s = self._total_s()

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        """Return the CPU time of everything in the slot since the job started, less what the slot itself may have used."""
        return Usage(cpu_time_s=max(0.0, self._total_s() - self._started_at_s - _SLOT_CPU_TIME_S))

    def close(self) -> None:
        """Close the counter."""
        os.close(self._fd)
        self._fd = -1  # a late `read` then raises, and reads no other file that has reused the number

    def _total_s(self) -> float:
        text = os.pread(self._fd, 256, 0)
        if text.startswith(b"usage_usec "):
            return int(text.split(maxsplit=2)[1]) / 1e6
        return int(text) / 1e9


class TreeMeter:
    """CPU time, memory and tasks from `/proc`: the sums over everything below a slot.

    Args:
        slot_pid: The slot, below which at most one job runs.
        own_network: The slot has its own network namespace, whose sockets are all the job's.
        num_trusted: Number of first processes below the slot whose mappings are not counted, as they run no program.
    """

    def __init__(self, slot_pid: int, *, own_network: bool = False, num_trusted: int = 0) -> None:
        self._slot_pid = slot_pid
        self._num_trusted = num_trusted
        self._stat = os.open(f"/proc/{slot_pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        self._sockets: int | None = None
        self._sockets_of_slot = 0
        if own_network:
            try:
                self._sockets = os.open(f"/proc/{slot_pid}/net/sockstat", os.O_RDONLY | os.O_CLOEXEC)
                self._sockets_of_slot = self._num_sockets()
            except BaseException:
                self.close()
                raise
        self._begin_counts()
        self._reaped_before = 0

    def restart(self) -> None:
        """Start to count for the next job."""
        self._reaped_before = self._reaped()
        self._begin_counts()

    def read(self, *, memory_bytes: int, max_tasks: int) -> Usage:
        """Return the resources of everything below the slot.

        Memory is the sum of the resident sizes. Only if that exceeds `memory_bytes` and several processes may share it, memory
        is the last sum of their proportional shares, which is counted in the background and may be late. The most that sockets
        may hold, and the kernel's memory for mappings, are added.
        """
        reaped = self._reaped() - self._reaped_before
        pids = process_tree.descendants(self._slot_pid, at_most=max_tasks + _SLOT_TASKS + 1)
        usage = process_tree.usage(pids)
        unwaited = self._unwaited.update(usage.ticks, reaped=reaped)
        socket_bytes = max(0, self._num_sockets() - self._sockets_of_slot) * BUFFER_BYTES_PER_SOCKET
        mappings_bytes = self._mappings.latest(pids[self._num_trusted :], enough=memory_bytes)
        is_assumed = mappings_bytes >= process_tree.unreadable_bytes(SHARED_REGION_MAX_BYTES)
        kernel_bytes = socket_bytes + mappings_bytes
        used_bytes = usage.memory_bytes
        if used_bytes + kernel_bytes > memory_bytes and len(pids) > 1:
            used_bytes = self._shares.latest(pids, enough=memory_bytes)
        return Usage(
            cpu_time_s=(reaped + unwaited) / _TICKS_PER_S + usage.cpu_time_s,
            memory_bytes=used_bytes + kernel_bytes,
            assumed_bytes=mappings_bytes if is_assumed else 0,
            num_tasks=max(0, usage.num_tasks - _SLOT_TASKS),
        )

    def close(self) -> None:
        """Close the slot's files in `/proc`; a later read raises an error, and reads no other file."""
        os.close(self._stat)
        self._stat = -1
        if self._sockets is not None:
            os.close(self._sockets)
            self._sockets = -1

    def _begin_counts(self) -> None:
        self._shares = MemoryCounts(process_tree.proportional_memory_bytes)
        count_mappings = partial(process_tree.kernel_memory_bytes, region_bytes=SHARED_REGION_MAX_BYTES)
        self._mappings = MemoryCounts(count_mappings, pause_s=_PAUSE_OF_KERNEL_MEMORY_S)
        self._unwaited = UnwaitedCpu()

    def _num_sockets(self) -> int:
        """Return the number of sockets in the namespace, closed ones with unread messages included."""
        if self._sockets is None:
            return 0
        return int(os.pread(self._sockets, 64, 0).split(maxsplit=3)[2])  # "sockets: used 12"

    def _reaped(self) -> int:
        """Return the CPU time in ticks of all children that the slot has waited for."""
        try:
            # proc_pid_stat(5), counted from field 3: field 2, the name, may hold spaces and brackets.
            fields = os.pread(self._stat, 1024, 0).rpartition(b") ")[2].split()
        except ProcessLookupError:
            return self._reaped_before  # the slot died: its socket will report that
        return int(fields[13]) + int(fields[14])
