"""Resources that a judge holds when idle, and their growth: memory, descriptors, processes, mounts, cgroups, files."""

import os
import statistics
from collections.abc import Sequence
from pathlib import Path

import psutil

Holdings = dict[str, float]
"""Resources by name; memory in MiB, all others as counts."""

_MIB = 1024 * 1024
_CGROUPS = Path("/sys/fs/cgroup")
ALLOWED_GROWTH: dict[str, float] = {
    "server MiB": 12,
    "below MiB": 24,
    "server descriptors": 4,  # a connection may be just closing
    "descriptors below": 0,
    "processes": 0,
    "mounts": 0,
    "cgroups": 0,
    "files": 0,
    "strays": 0,
}
"""Most growth allowed from start to end."""


def holdings(server: psutil.Process, temporary: Path) -> Holdings:
    """Return the resources that a server and everything below it hold now.

    Args:
        server: Its process, a child of this one, which must be a subreaper, so that the server's orphans are handed to it.
        temporary: Its folder for temporary files.
    """
    below = server.children(recursive=True)
    namespaces: dict[str, int] = {}
    used_bytes = num_descriptors = 0
    for process in below:
        try:
            used_bytes += process.memory_full_info().pss
            num_descriptors += process.num_fds()
            namespaces[os.readlink(f"/proc/{process.pid}/ns/mnt")] = len(_mounts(process.pid))
        except (psutil.Error, OSError):  # it has ended meanwhile
            continue
    return {
        "server MiB": server.memory_info().rss / _MIB,
        "below MiB": used_bytes / _MIB,
        "server descriptors": server.num_fds(),
        "descriptors below": num_descriptors,
        "processes": len(below),
        "mounts": len(_mounts(server.pid)) + sum(namespaces.values()),
        "cgroups": count_cgroups(server.pid),
        "files": count_files(temporary),
        "strays": count_strays(server),
    }


def count_strays(server: psutil.Process) -> int:
    """Return the number of live orphans of a server, which were handed to this process."""
    return sum(child != server and _lives(child) for child in psutil.Process().children())


def count_files(folder: Path) -> int:
    """Return the number of files and folders below a folder."""
    return sum(1 for _ in folder.rglob("*"))


def count_cgroups(server_pid: int) -> int:
    """Return the number of control groups created by a server, in all hierarchies."""
    groups = {path for folder in _CGROUPS.rglob(f"code-judge-{server_pid}-*") for path in (folder, *folder.iterdir())}
    return sum(path.is_dir() for path in groups)


def growth(whole: Holdings, points: Sequence[Holdings]) -> Holdings:
    """Return the growth from the first third of the quiet points to the last third.

    For memory, which fluctuates, the difference of the medians. For counts the least of the last third minus the most of the
    first, so that ending processes, and dead slots that nothing has needed since, do not count.

    Args:
        whole: Resources before the first kill; for counts, it belongs to the first third.
        points: The quiet points after the warm-up.
    """
    third = max(len(points) // 3, 1)
    first, last = points[:third], points[-third:]
    return {
        name: statistics.median(point[name] for point in last) - statistics.median(point[name] for point in first)
        if name.endswith("MiB")
        else min(point[name] for point in last) - max(point[name] for point in [whole, *first])
        for name in ALLOWED_GROWTH
    }


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _mounts(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
