"""Resources of a running job, as the kernel counts them."""

import os
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from code_judge_server import process_tree
from code_judge_server.jail.loopback import BUFFER_BYTES_PER_SOCKET
from code_judge_server.jail.seccomp_filter import SHARED_REGION_MAX_BYTES
from code_judge_server.jail_executor.memory_counts import MemoryCounts
from code_judge_server.jail_executor.unwaited_cpu import UnwaitedCpu

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
