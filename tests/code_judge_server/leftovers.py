"""Resources that a judge holds of its machine, for comparison: an ended job must have left nothing.

The machine may have other users: only those temporary files and IPC objects count that the judge's own users created, or that
have a name used by attacks.
"""

import ctypes
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path

import psutil

from code_judge_server.sandbox import process_tree

_TEMPORARY_FOLDERS = ("/tmp", "/dev/shm", "/var/tmp", "/run", "/dev/mqueue")
_ATTACKS_FILES = re.compile(r"left-by|^\.?left|attack\.")
_JUDGES_CGROUP = re.compile(r"/code-judge-(\d+)-")
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class Holdings:
    """Resources held at one moment; each entry is a text with its count.

    Example: `Holdings(processes=Counter({"python3.11": 4}), mounts=Counter({"/ tmpfs": 1}), ...)`.
    """

    processes: Counter[str]
    """Processes of the server and everything below it, and orphans that were handed to this process."""
    mounts: Counter[str]
    """Mounts in every mount namespace of those processes, and of this one."""
    cgroups: Counter[str]
    """Cgroups of the judge, and those that its users created."""
    files: Counter[str]
    """Temporary files of the judge's users or with names used by attacks, and all in its folder."""
    ipc: Counter[str]
    """System V objects of the judge's users."""
    descriptors: Counter[str]
    """Descriptors of the server and everything below it, by the name of their process and their target."""

    def compared_with(self, earlier: "Holdings") -> list[str]:
        """Return the added and the missing entries."""
        differences = []
        for field in fields(self):
            now, then = getattr(self, field.name), getattr(earlier, field.name)
            differences += [f"{field.name}: {count} more of {what}" for what, count in sorted((now - then).items())]
            differences += [f"{field.name}: {count} less of {what}" for what, count in sorted((then - now).items())]
        return differences


def look(server_pid: int | None, *, folder: Path, users: Collection[int], others: Collection[int] = ()) -> Holdings:
    """Return the resources held now.

    Args:
        server_pid: The judge, which may have ended; None before it starts.
        folder: Its work folder.
        users: User ids of the judge and its jobs, other than root's.
        others: Children of this process from before, such as another test's Ray; nothing below them counts.
    """
    family = _family(server_pid, others)
    return Holdings(
        processes=_by_name(family),
        mounts=_mounts([process.pid for process in family]),
        cgroups=_cgroups(server_pid, users),
        files=_files(folder, users),
        ipc=_ipc(users),
        descriptors=_descriptors(family),
    )


def assert_nothing_is_left(before: Holdings, look_again: Callable[[], Holdings], *, within_s: float = 60.0) -> None:
    """Wait until the resources held are those of before.

    Raises:
        AssertionError: they still differ; names the differences.
    """
    deadline = time.monotonic() + within_s
    while differences := look_again().compared_with(before):
        assert time.monotonic() < deadline, "\n".join(["this is left:", *differences])
        time.sleep(0.05)


def processes_of(server_pid: int | None) -> Counter[str]:
    """Return the processes of a judge, by name; see `look`."""
    return _by_name(_family(server_pid, others=()))


def _by_name(family: Sequence[psutil.Process]) -> Counter[str]:
    names: Counter[str] = Counter()
    for process in family:
        with suppress(psutil.NoSuchProcess):  # it has just ended
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            names[f"{process.name()} (zombie)" if is_zombie else process.name()] += 1
    return names


@contextmanager
def adopting_orphans() -> Iterator[frozenset[int]]:
    """Make this process the subreaper of orphans, so that no process of a judge escapes the checks.

    Yields the children that this process already has. At the end no later child is left as a zombie.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    others = frozenset(process.pid for process in psutil.Process().children())
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield others
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
        psutil.wait_procs([process for process in psutil.Process().children() if process.pid not in others], timeout=5)


def _family(server_pid: int | None, others: Collection[int]) -> list[psutil.Process]:
    """Return the server and everything below it; without it, everything below this process except the `others`."""
    if server_pid is not None and psutil.pid_exists(server_pid):
        family = []
        for pid in (
            server_pid,
            *process_tree.descendants(server_pid, at_most=100_000),
        ):  # psutil reads the whole machine
            with suppress(psutil.NoSuchProcess):
                family.append(psutil.Process(pid))
        return family
    processes = []
    for child in psutil.Process().children():
        if child.pid not in others:
            with suppress(psutil.NoSuchProcess):  # it has just ended
                processes += [child, *child.children(recursive=True)]
    return [process for process in processes if not _has_ended(process)]


def _has_ended(process: psutil.Process) -> bool:
    """Return whether the process has ended, be it as a zombie of this process."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() == os.getpid()
    except psutil.NoSuchProcess:
        return True


def _mounts(pids: Sequence[int]) -> Counter[str]:
    mounts: Counter[str] = Counter()
    seen: set[str] = set()
    for pid in (os.getpid(), *pids):
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
            lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
        except OSError:  # it has just ended
            continue
        if namespace not in seen:
            seen.add(namespace)
            mounts.update(" ".join(line.split()[3:6]) for line in lines)
    return mounts


def _cgroups(server_pid: int | None, users: Collection[int]) -> Counter[str]:
    folders: Counter[str] = Counter()
    for folder, _, _ in os.walk("/sys/fs/cgroup"):
        with suppress(FileNotFoundError):  # another server's group, just removed
            judge = _JUDGES_CGROUP.search(folder)
            if (judge is not None and int(judge[1]) == server_pid) or os.stat(folder).st_uid in users:
                folders[folder] += 1
    return folders


def _files(folder: Path, users: Collection[int]) -> Counter[str]:
    files: Counter[str] = Counter()
    if folder.exists():
        files.update(str(path) for path in folder.rglob("*"))
    for top in _TEMPORARY_FOLDERS:
        for path in Path(top).glob("*"):
            try:
                is_of_a_user = path.lstat().st_uid in users
            except FileNotFoundError:
                continue
            if is_of_a_user or _ATTACKS_FILES.search(path.name):
                files[str(path)] += 1
    return files


def _ipc(users: Collection[int]) -> Counter[str]:
    objects: Counter[str] = Counter()
    for table in ("shm", "msg", "sem"):
        header, *lines = Path("/proc/sysvipc", table).read_text().splitlines()
        owner = header.split().index("uid")
        objects.update(f"{table} {line.split()[0]}" for line in lines if int(line.split()[owner]) in users)
    return objects


def _descriptors(family: Sequence[psutil.Process]) -> Counter[str]:
    descriptors: Counter[str] = Counter()
    for process in family:
        try:
            name = process.name()
            for entry in os.scandir(f"/proc/{process.pid}/fd"):
                descriptors[f"{name} {_kind(os.readlink(entry.path))}"] += 1
        except (psutil.NoSuchProcess, OSError):  # it has just ended
            continue
    return descriptors


def _kind(target: str) -> str:
    return re.sub(r"\[\d+\]|\d+|\(deleted\)", "", target)
