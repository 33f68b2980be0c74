"""The control groups of one server: created below its own group, one per slot, and removed at its end.

On version 1 the hierarchies `memory`, `pids`, `cpuacct` and `cpu` each get a folder, on version 2 one folder has all
controllers. This runs in the server; `slot_cgroup` runs in the slot.

With the controller `cpu`, slots that compute get equal shares of the CPU, whatever the number of their processes.

A server keeps its groups locked: see `folder_lock`.
"""

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from code_judge_server.jail.kernel import folder_lock

CONTROLLERS_V1 = ("memory", "pids", "cpuacct")
_CONTROLLERS_V2 = ("memory", "pids")
_CPU = "cpu"
"""Controller that a machine may lack, or have in one hierarchy with `cpuacct`."""
_WEIGHTS = {1: ("cpu.shares", 1024, 262_144), 2: ("cpu.weight", 100, 10_000)}
"""File, weight of one process, and largest weight, keyed by cgroup version."""
_SOCKETS_V1 = "memory.kmem.tcp.limit_in_bytes"
_SOCKET_BYTES = 64 * 1024 * 1024
"""Limit on the socket buffers of one slot: version 1 counts them apart from other memory, and only with a limit."""
_PREFIX = "code-judge-"
_REMOVAL_TIMEOUT_S = 2.0
_LOCK_TIMEOUT_S = 1.0


class NoCgroupsError(Exception):
    """This process cannot create control groups below its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroups:
    """The groups of one server.

    Example: `Cgroups(version=1, folders={"memory": Path("/sys/fs/cgroup/memory/x/code-judge-7-5f0c"), ...}, locks=[...])`.
    """

    version: int
    folders: dict[str, Path]
    """Folders keyed by controller; version 2 has the single key `""`."""
    locks: list[int] = field(default_factory=list)
    """Descriptors of the folders; while they are open no other server treats the groups as stale."""

    def slot_folders(self, number: int) -> dict[str, Path]:
        """Return the folders of one slot, by controller."""
        return {controller: folder / f"slot-{number}" for controller, folder in self.folders.items()}

    def cpu_file(self, number: int) -> Path:
        """Return the file with the CPU time of a slot: nanoseconds (version 1), or lines with `usage_usec` (version 2)."""
        folders = self.slot_folders(number)
        return folders["cpuacct"] / "cpuacct.usage" if self.version == 1 else folders[""] / "cpu.stat"

    @property
    def has_shares(self) -> bool:
        """True if slots have shares of the CPU."""
        return (self._cpu_folder / _WEIGHTS[self.version][0]).exists()

    @property
    def _cpu_folder(self) -> Path:
        return self.folders.get(_CPU) or self.folders["cpuacct" if self.version == 1 else ""]

    def weigh(self) -> None:
        """Give all slots together the weight of one process per core."""
        name, of_a_process, most = _WEIGHTS[self.version]
        if self.has_shares:
            (self._cpu_folder / name).write_text(str(min(of_a_process * len(os.sched_getaffinity(0)), most)))

    def make_slots(self, num_slots: int) -> None:
        """Create the groups of the slots."""
        for number in range(num_slots):
            for folder in self.slot_folders(number).values():
                folder.mkdir(exist_ok=True)
                if (folder / _SOCKETS_V1).exists():
                    (folder / _SOCKETS_V1).write_text(str(_SOCKET_BYTES))

    def remove(self) -> None:
        """Remove all groups; wait up to two seconds for processes that are ending."""
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
        for folder in self.folders.values():
            while not _remove(folder) and time.monotonic() < deadline:
                time.sleep(0.01)
        while self.locks:
            os.close(self.locks.pop())


def make_cgroups() -> Cgroups:
    """Create this server's groups, after removing those of dead servers.

    Raises:
        NoCgroupsError: this process may not write to any group.
    """
    own = _own_groups()
    version = 1 if all(controller in own for controller in CONTROLLERS_V1) else 2
    parents = {controller: own[controller] for controller in CONTROLLERS_V1} if version == 1 else {"": own.get("")}
    cgroups = Cgroups(version=version, folders={})
    name = f"{_PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
    try:
        for controller, parent in parents.items():
            if parent is None:
                raise NoCgroupsError("cgroups: no hierarchy with the controllers memory, pids and cpuacct is mounted")
            _make_group(cgroups, controller, parent, name)
        if version == 1 and _CPU in own and own[_CPU] not in parents.values():
            with contextlib.suppress(OSError):  # programs then have no CPU shares
                _make_group(cgroups, _CPU, own[_CPU], name)
        cgroups.weigh()
    except OSError as error:
        cgroups.remove()
        raise NoCgroupsError(f"cgroups: {error}") from error
    return cgroups


def _make_group(cgroups: Cgroups, controller: str, parent: Path, name: str) -> None:
    """Create this server's group in one hierarchy."""
    if cgroups.version == 2:
        _enable_controllers(parent)
    folder = parent / name
    with _locked(parent):
        _remove_stale(parent)
        folder.mkdir()
        cgroups.folders[controller] = folder
        cgroups.locks.append(folder_lock.lock(folder, folder_lock.SHARED))
    if cgroups.version == 2:
        (folder / "cgroup.subtree_control").write_text(_enabling())
        _enable_shares(parent, folder)


def _own_groups() -> dict[str, Path]:
    """Return the folder of this process's own group by controller; `""` is version 2."""
    paths: dict[str, str] = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths.update(dict.fromkeys(controllers.split(","), path))
    folders: dict[str, Path] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        root, folder = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        names = [""] if kind == "cgroup2" else options.split(",") if kind == "cgroup" else []
        for name in set(names) & set(paths):
            below = os.path.relpath(paths[name], root)
            if not below.startswith(".."):
                folders[name] = Path(folder, below)
    return folders


def _enabling() -> str:
    return " ".join(f"+{controller}" for controller in _CONTROLLERS_V2)


def _enable_controllers(own: Path) -> None:
    """Enable the controllers for the groups below `own`; version 2 allows no process in a group that has child groups.

    Raises:
        NoCgroupsError: the controllers are missing, or the group holds other processes.
        OSError: the kernel refuses.
    """
    controllers = (own / "cgroup.controllers").read_text().split()
    if missing := sorted(set(_CONTROLLERS_V2) - set(controllers)):
        raise NoCgroupsError(f"cgroups: {own} lacks the controllers {missing}")
    if set(_CONTROLLERS_V2) <= set((own / "cgroup.subtree_control").read_text().split()):
        return
    try:
        (own / "cgroup.subtree_control").write_text(_enabling())
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        if (own / "cgroup.procs").read_text().split() != [str(os.getpid())]:
            raise NoCgroupsError(
                f"cgroups: {own} holds other processes. Start the server in a group of its own"
            ) from error
        leaf = own / "code-judge-server"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
        (own / "cgroup.subtree_control").write_text(_enabling())


def _enable_shares(*folders: Path) -> None:
    """Enable shares of the CPU for the groups below these, where the kernel allows it."""
    with contextlib.suppress(OSError):
        for folder in folders:
            (folder / "cgroup.subtree_control").write_text(f"+{_CPU}")


def _remove_stale(parent: Path) -> None:
    """Remove the groups of dead servers."""
    for folder in parent.glob(f"{_PREFIX}*-*"):
        try:
            lock = folder_lock.lock(folder, folder_lock.EXCLUSIVE)
        except OSError:  # its server lives, it is already gone, or it belongs to another user
            continue
        _remove(folder)
        os.close(lock)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other servers from inspecting a folder; continue without the lock after a while, as anybody may hold it."""
    lock = None
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while lock is None and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            lock = folder_lock.lock(folder, folder_lock.EXCLUSIVE)
        if lock is None:
            time.sleep(0.01)
    try:
        yield
    finally:
        if lock is not None:
            os.close(lock)


def _remove(folder: Path) -> bool:
    """Remove a group and its slots' groups; return whether it is gone."""
    with contextlib.suppress(FileNotFoundError):
        for slot in folder.glob("slot-*"):
            with contextlib.suppress(OSError):
                slot.rmdir()
        try:
            folder.rmdir()
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return True
