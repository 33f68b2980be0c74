"""The processes below this one: their use of resources, and a reliable way to end them.

A process that loses its parent is handed to the nearest *subreaper* above it. Below a subreaper neither `setsid` nor a double
fork nor an ignored signal leaves the tree, so "no child is left" means "nothing is left".
"""

import contextlib
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_BYTES_PER_MAPPING = 256
"""Size of `vm_area_struct` and its part of the tree that holds it."""
_MOST_MAPPINGS = 65530
"""Default of `vm.max_map_count`."""
_PART_BYTES = 1 << 20
_SHARED_ANONYMOUS = b" /dev/zero (deleted)"
"""End of the line of such a mapping in `/proc/PID/maps`; the line's inode is that of the region."""


def can_list_children() -> bool:
    """Return whether the kernel lists the children of a process (CONFIG_PROC_CHILDREN); nothing here works without."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children(pid: int) -> list[int]:
    """Return the process ids of the children of `pid`; none if it has ended."""
    pids: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as listing:
                pids.extend(map(int, listing.read().split()))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended meanwhile: the next call finds its children below the subreaper
    return pids


def descendants(pid: int, *, at_most: int) -> list[int]:
    """Return the processes below `pid`, parents before children, at most `at_most`: a fork bomb outruns any walk."""
    pids = children(pid)
    for descendant in pids:  # grows while it is walked
        if len(pids) >= at_most:
            break
        pids.extend(children(descendant))
    return pids[:at_most]


@dataclass(frozen=True, kw_only=True)
class TreeUsage:
    """Resources of a set of processes at one moment."""

    cpu_time_s: float
    """User and system time of the living processes, and of the children they have waited for."""
    memory_bytes: int
    """Sum of the resident sizes; shared memory counts in each process."""
    num_tasks: int
    """Processes and threads."""
    ticks: dict[tuple[int, int], tuple[int, int]]
    """CPU time per process, keyed by pid and start time: its own, and that of the children it has waited for."""


def usage(pids: list[int]) -> TreeUsage:
    """Return the resources that `pids` use; ended processes are skipped."""
    pages = tasks = 0
    ticks: dict[tuple[int, int], tuple[int, int]] = {}
    for pid in pids:
        try:
            fields = _stat_fields(f"/proc/{pid}")
        except (FileNotFoundError, ProcessLookupError):
            continue
        user, system, children_user, children_system = map(int, fields[11:15])
        ticks[pid, int(fields[19])] = user + system, children_user + children_system
        tasks += int(fields[17])
        pages += int(fields[21]) or _pages_of_threads(pid, state=fields[0], num_threads=int(fields[17]))
    cpu_time_s = sum(map(sum, ticks.values())) / _TICKS_PER_S
    return TreeUsage(cpu_time_s=cpu_time_s, memory_bytes=pages * _PAGE_BYTES, num_tasks=tasks, ticks=ticks)


def _stat_fields(folder: str) -> list[str]:
    """Return proc_pid_stat(5) from field 3 on; field 2, the name, may hold spaces and brackets."""
    with open(f"{folder}/stat") as stat:
        return stat.read().rpartition(") ")[2].split()


def _pages_of_threads(pid: int, *, state: str, num_threads: int) -> int:
    """Return the resident pages of a process whose leader has exited, read from its other threads."""
    if state != "Z" or num_threads < 2:
        return 0
    for folder in _thread_folders(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if pages := int(_stat_fields(folder)[21]):
                return pages
    return 0


def _thread_folders(pid: int) -> list[str]:
    """Return the `/proc` folders of all threads of a process; none if it has ended."""
    try:
        return [f"/proc/{pid}/task/{thread}" for thread in os.listdir(f"/proc/{pid}/task")]
    except (FileNotFoundError, ProcessLookupError):
        return []


def any_runnable(pids: list[int], *, at_most: int) -> bool:
    """Return whether one of the first `at_most` threads of `pids` runs or waits for a core."""
    return "R" in itertools.islice(_states(pids), at_most)


def _states(pids: list[int]) -> Iterator[str]:
    """Yield the state letter of each thread, as in proc_pid_stat(5)."""
    for pid in pids:
        for folder in _thread_folders(pid):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                yield _stat_fields(folder)[0]


def proportional_memory_bytes(pids: list[int], *, enough: int) -> int:
    """Return the memory of `pids` with each shared page counted once (PSS); stops at the first processes that exceed
    `enough`. Takes milliseconds for a large process.

    A process that made itself unreadable counts with its whole resident size.
    """
    total = 0
    for pid in pids:
        try:
            total += _first_found(pid, _proportional_bytes)
        except PermissionError:
            total += usage([pid]).memory_bytes
        if total > enough:
            break
    return total


def _first_found(pid: int, count: Callable[[str], int]) -> int:
    """Return the first result of `count` in the folder of a process or, if its leader has exited, of a thread."""
    for folder in _folders(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if number := count(folder):
                return number
    return 0


def _folders(pid: int) -> Iterator[str]:
    yield f"/proc/{pid}"
    yield from _thread_folders(pid)


def _proportional_bytes(folder: str) -> int:
    with open(f"{folder}/smaps_rollup") as rollup:
        return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))


def kernel_memory_bytes(pids: list[int], *, enough: int, region_bytes: int) -> int:
    """Return the estimated kernel memory for mappings and page tables of `pids`; stops at the first processes that exceed
    `enough`. Takes tens of milliseconds for a process with the most mappings.

    Args:
        pids: Processes to count.
        enough: Bytes; a larger count stops.
        region_bytes: Charge for each region of shared anonymous memory, which keeps pages that are no longer mapped and whose
            number cannot be read. A process that made itself unreadable is charged `unreadable_bytes`.
    """
    total = 0
    regions: set[bytes] = set()
    for pid in pids:
        total += _first_found(pid, lambda folder: _kernel_bytes(folder, regions, region_bytes))
        if total + len(regions) * region_bytes > enough:
            break
    return total + len(regions) * region_bytes


def unreadable_bytes(region_bytes: int) -> int:
    """Return the charge for a process that made itself unreadable: the most mappings, each a region of shared memory."""
    return _MOST_MAPPINGS * (_BYTES_PER_MAPPING + region_bytes)


def _kernel_bytes(folder: str, regions: set[bytes], region_bytes: int) -> int:
    """Return the kernel memory of one process, and add its regions of shared anonymous memory to `regions`."""
    with open(f"{folder}/status") as status:
        page_tables = sum(int(line.split()[1]) * 1024 for line in status if line.startswith("VmPTE:"))
    try:
        with open(f"{folder}/maps", "rb", buffering=0) as file:
            maps = b"".join(iter(lambda: file.read(_PART_BYTES), b""))
    except PermissionError:
        return page_tables + unreadable_bytes(region_bytes)
    if _SHARED_ANONYMOUS in maps:
        regions.update(line.split()[4] for line in maps.splitlines() if line.endswith(_SHARED_ANONYMOUS))
    return page_tables + maps.count(b"\n") * _BYTES_PER_MAPPING


def kill(pid: int) -> None:
    """Send SIGKILL to one process, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_group(pgid: int) -> None:
    """Send SIGKILL to a process group at once; no member can fork out of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pgid, signal.SIGKILL)


def pause_for_exits() -> None:
    """Give killed processes time to end."""
    time.sleep(0.001)
