"""The settings of a launcher: the tier, the files that jobs see, their groups and their filter."""

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from code_judge_server.jail.kernel import jail_root, seccomp_filter
from code_judge_server.jail.kernel.cgroups import Cgroups, make_cgroups
from code_judge_server.jail.kernel.folder_lock import make_work_root
from code_judge_server.jail.kernel.slot_users import SlotUsers, first_user_of_any
from code_judge_server.jail.native import compiled
from code_judge_server.jail.protocol import Message
from code_judge_server.sandbox import work_folder
from code_judge_server.schemas import IsolationTier

PACKAGE_PARENT = str(Path(__file__).resolve().parents[3])
_COMMAND = (
    "import sys; sys.path[0] = sys.argv[1]; from code_judge_server.jail.launch.launcher import main; del sys.path[0];"
    " main(int(sys.argv[2]))"
)
_WITH_ROOM_FOR_STACKS = f'ulimit -S -s {16 * 1024 * 1024} 2>/dev/null; unset PWD OLDPWD SHLVL; exec "$@"'
"""Shell command with a size in KiB. The kernel keeps this much free below the stack of the executed program, and the stacks of
forks can grow no further.
"""
_OWN_FOLDERS = ("/dev/shm", "/sandbox")
"""Folders that each job has of its own, except in tier C. It also has its own /tmp, which can show folders of the machine."""
_MOST_LINKS = 40
"""Most links on the way to one file; the kernel follows no more either."""


class HiddenPathError(Exception):
    """A path that jobs must see lies in a folder that each job has of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The settings of launchers; descriptors and groups are the server's, which may start several launchers from one plan."""

    tier: IsolationTier
    num_slots: int
    preloads: Mapping[str, Sequence[str]]
    """Modules of each preload set, by name."""
    read_only: Sequence[str]
    """Paths that jobs see besides the system's."""
    first_uid: int | None
    """User of the jobs of slot 0; the next slots have the next users. None: this process is not root."""
    slot_users: SlotUsers | None
    """Users of an ordinary user's slots; None: jobs have root's `first_uid` and above, or this process's own user."""
    cgroups: Cgroups | None
    """Control groups; None: rlimits and the server's sampling limit memory and tasks."""
    seccomp: int
    """Descriptor of the seccomp filter."""
    work_folder: str | None
    """Tier C: parent of the folders of jobs."""
    work_folder_lock: int | None
    """Descriptor; while it is open no other server treats that folder as stale."""
    fast_path: bool
    """Jobs start by what is in `jail/native`, from private text, with hidden frames; False: by plain forks."""
    init: int | None
    """Descriptor of the compiled init; None: `python_init` replaces it."""
    job_start: int | None
    """Descriptor of the compiled start of jobs; None: `slot` replaces it."""

    def command(self, descriptor: int) -> list[str]:
        """Return the command that starts a launcher on its socket; without `-I` or `-S`, as its zygotes replace plain
        interpreters.
        """
        interpreter = [sys.executable, "-c", _COMMAND, PACKAGE_PARENT, str(descriptor)]
        return ["/bin/sh", "-c", _WITH_ROOM_FOR_STACKS, "sh", *interpreter]

    def start_message(self) -> tuple[Message, tuple[int, ...]]:
        """Return the first message to a launcher and its descriptors."""
        groups = self.cgroups
        slots = [groups.slot_folders(number) for number in range(self.num_slots)] if groups is not None else []
        parts = {"init": self.init, "job_start": self.job_start}
        parts = {name: descriptor for name, descriptor in parts.items() if descriptor is not None}
        message = {
            "kind": "start",
            "preloads": {name: list(modules) for name, modules in self.preloads.items()},
            "read_only": list(self.read_only),
            "uids": None if self.first_uid is None else list(range(self.first_uid, self.first_uid + self.num_slots)),
            "slot_users": None if self.slot_users is None else asdict(self.slot_users),
            "work_folder": self.work_folder,
            "fast_path": self.fast_path,
            "compiled": list(parts),
            "cgroup_version": None if groups is None else groups.version,
            "cgroups": [{name: str(folder) for name, folder in folders.items()} for folders in slots],
        }
        return message, (self.seccomp, *parts.values())

    def close(self) -> None:
        """Remove the groups and folders and close the descriptors; all launchers of this plan must have ended."""
        if self.cgroups is not None:
            self.cgroups.remove()
        if self.work_folder is not None:
            work_folder.remove(self.work_folder)
        for descriptor in (self.seccomp, self.init, self.job_start, self.work_folder_lock):
            if descriptor is not None:
                os.close(descriptor)


def make_plan(
    tier: IsolationTier,
    *,
    num_slots: int,
    preloads: Mapping[str, Sequence[str]],
    read_only: Sequence[str] = (),
    slot_users: SlotUsers | None = None,
    fast_path: bool = True,
) -> Plan:
    """Prepare for launchers of `tier`, one of A, B and C.

    Args:
        tier: The tier of `canaries.find_tier`, or a weaker one.
        num_slots: Most jobs at once.
        preloads: Modules of each preload set, by name.
        read_only: Absolute paths that jobs see besides the system's and Python's.
        slot_users: At least one user per slot, tested by `canaries`, for an ordinary user.
        fast_path: See `Plan`.

    Raises:
        HiddenPathError: the interpreter or one of `read_only` lies in a folder that each job has of its own.
        NoCgroupsError: tier A is wanted, but this process cannot create control groups.
        SeccompError: the filter cannot be made.
    """
    if tier is not IsolationTier.C:
        _refuse_hidden(read_only)
    groups = None
    if tier is IsolationTier.A:
        groups = make_cgroups()
        groups.make_slots(num_slots)
    work_root, work_root_lock = make_work_root() if tier is IsolationTier.C else (None, None)
    init = job_start = None
    if fast_path:
        with contextlib.suppress(compiled.NotCompiledError):  # reported by the canaries
            init = compiled.open_init()
        with contextlib.suppress(compiled.NotCompiledError):
            job_start = compiled.open_job_start()
    return Plan(
        tier=tier,
        num_slots=num_slots,
        preloads=preloads,
        read_only=[*_interpreter_paths(), *_with_links(read_only)],
        first_uid=first_user_of_any(num_slots) if os.geteuid() == 0 else None,
        slot_users=slot_users,
        cgroups=groups,
        work_folder=work_root,
        work_folder_lock=work_root_lock,
        seccomp=seccomp_filter.open_filter(
            namespaces=tier is not IsolationTier.C,
            memory_group=groups is not None,
            own_users=os.geteuid() == 0 or slot_users is not None,
        ),
        fast_path=fast_path,
        init=init,
        job_start=job_start,
    )


def path_in_alias(read_only: Sequence[str]) -> str | None:
    """Return a shown path that lies in `jail_root.ALIAS`, which then cannot be a name of the work folder."""
    paths = [*_interpreter_paths(), *_with_links(read_only)]
    return next((path for path in paths if f"{path}/".startswith(f"{jail_root.ALIAS}/")), None)


def job_environment() -> dict[str, str]:
    """Return the environment of launchers and jobs, without the server's own variables."""
    return {
        "PATH": f"{os.path.dirname(sys.executable)}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/sandbox",
        "TMPDIR": "/tmp",
        "USER": "sandbox",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",  # equal programs print sets in the same order
        "OPENBLAS_NUM_THREADS": "1",  # slots share the cores
        "OMP_NUM_THREADS": "1",
    }


def _refuse_hidden(read_only: Sequence[str]) -> None:
    for path in read_only:
        if (below := _hides(_with_links([path]))) is not None:
            raise HiddenPathError(
                f"read_only_paths: `{path}` is in {below}, which each program has of its own. Move it elsewhere"
            )
    for path in _interpreter_paths():
        if (below := _hides([path])) is not None:
            raise HiddenPathError(
                f"interpreter: `{path}` is in {below}, which each program has of its own, so none could run. "
                "Make the environment elsewhere"
            )


def _hides(paths: Sequence[str]) -> str | None:
    """Return the folder that each job has of its own and that contains one of these paths, if any; /tmp is allowed."""
    for path in paths:
        for folder in _OWN_FOLDERS:
            if path == folder or path.startswith(f"{folder}/"):
                return folder
    return "/tmp" if "/tmp" in paths else None


def _interpreter_paths() -> list[str]:
    """Return the paths of this interpreter: `sys.executable` and its prefixes, with all links on the way."""
    return _with_links([sys.executable, sys.base_prefix, sys.base_exec_prefix, sys.prefix, sys.exec_prefix])


def _with_links(paths: Sequence[str]) -> list[str]:
    """Return the real paths of `paths`, and each link on the way, whether it is a path itself or a folder above it: with all of
    these shown, each path leads to the same file as here.
    """
    return sorted({step for path in paths for step in _links_and_end(os.path.abspath(path))})


def _links_and_end(path: str) -> list[str]:
    links: list[str] = []
    resolved, ahead = "", path.split("/")[::-1]
    while ahead and len(links) < _MOST_LINKS:
        name = ahead.pop()
        if name in ("", ".", ".."):
            resolved = os.path.dirname(resolved) if name == ".." else resolved
        elif os.path.islink(step := f"{resolved}/{name}"):
            links.append(step)
            target = os.readlink(step)
            resolved = "" if target.startswith("/") else resolved
            ahead += target.split("/")[::-1]
        else:
            resolved = step
    if ahead:
        raise HiddenPathError(f"{path}: more than {_MOST_LINKS} links lead there. Use its real path")
    return [*links, resolved or "/"]
