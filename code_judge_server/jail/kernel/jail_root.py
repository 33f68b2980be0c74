"""The file system of jobs: a read-only tmpfs with the interpreter, its packages and the system's libraries, and nothing
else.

Every job copies this mount namespace, so it has few mounts: one per bound path, and in a user namespace one per device node
(which cannot be created there).
"""

import os
import stat
from functools import lru_cache

from code_judge_server.jail.kernel import syscalls

WORK_FOLDER = "/sandbox"
ALIAS = "/mnt"
"""Another name of the work folder, which users of SandboxFusion know as a writable folder."""
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
COPIED = ("/etc/ld.so.cache", "/etc/localtime")
ALTERNATIVES = "/etc/alternatives"
_DEVICES = ("null", "zero", "full", "random", "urandom")
_MADE = {
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "/etc/fonts/fonts.conf": "<fontconfig><dir>/usr/share/fonts</dir><cachedir>/tmp/fontconfig</cachedir></fontconfig>\n",
}
_ZERO_BYTES = 2**40
_SAFE = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
CPUINFO = "/run/cpuinfo"
"""Path in the jail root of the file that each job sees as `/proc/cpuinfo`."""
MEMINFO_MAX_BYTES = 1024
_ZEROS = (
    "Buffers", "Cached", "SwapCached", "Active", "Inactive", "SwapTotal", "SwapFree", "Shmem", "Slab", "SReclaimable",
)  # fmt: skip
"""Fields that psutil and `free` read."""
_NUM_REMEMBERED = 16


def enter(read_only: list[str], *, uids: list[int], own_user_namespace: bool, memory_group: bool) -> None:
    """Build the jail root and make it this process's root; the old one is gone for everything below.

    This process must be alone in a mount namespace of its own, as pid 1 of a pid namespace.

    Args:
        read_only: Absolute paths to show besides the system's, each at its own place.
        uids: Users of the jobs, for `/etc/passwd`.
        own_user_namespace: This process is root of a user namespace only.
        memory_group: A control group counts all memory of jobs.
    """
    processors = cpuinfo()
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    base = "/proc"  # the one folder that contains nothing to bind
    syscalls.mount("jail", base, "tmpfs", syscalls.MS_NOSUID, "mode=0755,size=16m")
    os.umask(0o022)
    _make_folders(base)
    _make_etc(base, uids)
    _write(base + CPUINFO, processors.encode())
    for path in outermost([*SYSTEM, *read_only]):
        _show(path, base)
    if not os.path.lexists(base + ALIAS):  # a shown path may be below it
        os.symlink(WORK_FOLDER, base + ALIAS)
    _make_devices(base, own_user_namespace=own_user_namespace, memory_group=memory_group)
    # A user namespace that mounts a fresh proc for each job needs a whole one to be mounted first.
    syscalls.mount("proc", f"{base}/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    os.chdir(base)
    syscalls.pivot_root(".", ".")
    syscalls.unmount(".", syscalls.MNT_DETACH)  # the old root, which lies on top of the new one
    os.chdir("/")
    flags = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
    syscalls.mount("none", "/", None, flags)


def _make_folders(base: str) -> None:
    for path in ("proc", "sandbox", "tmp", "dev", "dev/shm", "etc", "run", "var", "var/tmp"):
        os.mkdir(f"{base}/{path}")


def _make_etc(base: str, uids: list[int]) -> None:
    users = [("root", 0), *(("sandbox", uid) for uid in uids)]
    passwd = "".join(f"{name}:x:{uid}:{uid}::{WORK_FOLDER}:/bin/sh\n" for name, uid in users)
    group = "".join(f"{name}:x:{uid}:\n" for name, uid in users)
    os.mkdir(f"{base}/etc/fonts")
    for path, text in {"/etc/passwd": passwd, "/etc/group": group, **_MADE}.items():
        _write(base + path, text.encode())
    for path in COPIED:
        if os.path.exists(path):
            with open(path, "rb") as source:
                _write(base + path, source.read())
    if os.path.isdir(ALTERNATIVES):
        os.mkdir(base + ALTERNATIVES)
        for entry in os.scandir(ALTERNATIVES):
            if entry.is_symlink():
                os.symlink(os.readlink(entry.path), f"{base}{entry.path}")


def _write(path: str, content: bytes) -> None:
    with open(path, "wb") as target:
        target.write(content)


def outermost(paths: list[str]) -> list[str]:
    """Return the paths without those that do not exist or lie below another one."""
    existing = sorted({path for path in paths if os.path.lexists(path)})
    return [path for path in existing if not any(path.startswith(f"{other}/") for other in existing)]


def _show(path: str, base: str) -> None:
    """Bind `path` (with all mounts below it) read-only at its own place, or create the same link; parents are created
    without access restrictions.
    """
    target = base + path
    os.makedirs(os.path.dirname(target), exist_ok=True)
    if os.path.islink(path):
        if not os.path.lexists(target):  # a target in /etc/alternatives, for example
            os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        _write(target, b"")
    syscalls.mount(path, target, None, syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.set_mount_attributes(target, _SAFE)


def _make_devices(base: str, *, own_user_namespace: bool, memory_group: bool) -> None:
    for name in _DEVICES:
        target = f"{base}/dev/{name}"
        if name == "zero" and not memory_group:
            _write(target, b"")  # a sparse file: a writable mapping of the device would be memory that nothing counts
            os.truncate(target, _ZERO_BYTES)
        elif own_user_namespace:
            _write(target, b"")
            syscalls.mount(f"/dev/{name}", target, None, syscalls.MS_BIND)
        else:
            os.mknod(target, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)
            os.chmod(target, 0o666)
    for name, link in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{link}", f"{base}/dev/{name}")


def cpuinfo() -> str:
    """Return the machine's `/proc/cpuinfo` without the processors that this process may not use."""
    allowed = os.sched_getaffinity(0)
    try:
        with open("/proc/cpuinfo") as file:
            sections = file.read().strip().split("\n\n")
    except OSError:  # a container may hide it
        sections = [f"processor\t: {number}" for number in sorted(allowed)]
    return "".join(f"{section}\n\n" for section in sections if _processor(section) in {None, *allowed})


def _processor(section: str) -> int | None:
    """Return the number of the processor that a section describes; on some machines one section describes all."""
    name, _, number = section.partition("\n")[0].partition(":")
    return int(number) if name.strip() == "processor" else None


@lru_cache(maxsize=_NUM_REMEMBERED)
def meminfo(memory_bytes: int) -> bytes:
    """Return the `/proc/meminfo` of a job with this memory limit, with all of it free."""
    fields = dict.fromkeys(("MemTotal", "MemFree", "MemAvailable"), memory_bytes // 1024) | dict.fromkeys(_ZEROS, 0)
    return "".join(f"{f'{name}:':<15} {size:>8} kB\n" for name, size in fields.items()).encode()
