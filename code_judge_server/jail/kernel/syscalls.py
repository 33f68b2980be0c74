"""System calls that Python 3.11 has no function for, by `ctypes`; each raises `OSError` with its name if the kernel refuses.

Constants are those of the kernel's own headers, the same on x86_64 and aarch64.
"""

import ctypes
import os
import platform
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
CLONE_PARENT = 0x00008000
CLONE_PIDFD = 0x00001000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

MOUNT_ATTR_RDONLY = 0x1
MOUNT_ATTR_NOSUID = 0x2
MOUNT_ATTR_NODEV = 0x4

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_SECCOMP = 22
PR_CAPBSET_DROP = 24
PR_SET_SECUREBITS = 28
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAP_AMBIENT = 47

_AT_RECURSIVE = 0x8000
_AT_FDCWD = -100
_SECCOMP_MODE_FILTER = 2
_PR_CAP_AMBIENT_RAISE = 2
_INSTRUCTION_BYTES = 8
_CAPABILITY_VERSION_3 = 0x20080522

_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_CAPGET = {"x86_64": 125, "aarch64": 90}
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_MOUNT_SETATTR = 442
_SYS_OPENAT2 = 437
_SYS_LANDLOCK_CREATE_RULESET = 444
_SYS_LANDLOCK_ADD_RULE = 445
_SYS_LANDLOCK_RESTRICT_SELF = 446

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_machine = platform.machine()


def _checked(result: int, what: str) -> int:
    if result < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{what}: {os.strerror(errno)}")
    return result


def unshare(flags: int) -> None:
    """Move this process (with CLONE_NEWPID: its next children) to new namespaces."""
    _checked(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(descriptor: int, flags: int) -> None:
    """Move this process (with CLONE_NEWPID: its next children) to the namespaces of a process, given by its pidfd
    (Linux 5.8).
    """
    _checked(_libc.setns(descriptor, flags), f"setns({flags:#x})")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Mount a file system, or change a mount."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    arguments = (encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(_libc.mount(*arguments), f"mount({source}, {target}, {kind}, {flags:#x}, {options})")


def set_mount_attributes(target: str, attributes: int) -> None:
    """Set `MOUNT_ATTR_*` on a mount and on all below it at once (Linux 5.12)."""
    # struct mount_attr: set, clear, propagation, user namespace.
    wanted = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    path = os.fsencode(target)
    result = _libc.syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, path, _AT_RECURSIVE, wanted, ctypes.c_size_t(32))
    _checked(result, f"mount_setattr({target}, {attributes:#x})")


def unmount(target: str, flags: int = 0) -> None:
    """Remove a mount."""
    _checked(_libc.umount2(os.fsencode(target), flags), f"umount2({target})")


def pivot_root(new_root: str, put_old: str) -> None:
    """Make `new_root` the root of this mount namespace."""
    result = _libc.syscall(_SYS_PIVOT_ROOT[_machine], os.fsencode(new_root), os.fsencode(put_old))
    _checked(result, f"pivot_root({new_root})")


def prctl(option: int, value: int = 0, third: int = 0) -> None:
    """Change an attribute of this process."""
    arguments = (ctypes.c_ulong(value), ctypes.c_ulong(third), ctypes.c_ulong(0), ctypes.c_ulong(0))
    _checked(_libc.prctl(option, *arguments), f"prctl({option}, {value})")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal as soon as the thread that forked it ends."""
    prctl(PR_SET_PDEATHSIG, number)


def drop_bounding_set() -> None:
    """Drop every capability for programs executed from now on; this process keeps its own."""
    with open("/proc/sys/kernel/cap_last_cap") as last:
        for capability in range(int(last.read()) + 1):
            prctl(PR_CAPBSET_DROP, capability)


_capability_header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
_no_capabilities = (ctypes.c_uint32 * 6)()


def drop_capabilities() -> None:
    """Drop every capability of this process."""
    _checked(_libc.syscall(_SYS_CAPSET[_machine], _capability_header, _no_capabilities), "capset")


def keep_only_capability(number: int) -> None:
    """Keep one capability, of the first 32, and no other; programs executed by this process keep it too."""
    bit = 1 << number
    held = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)  # as in `keep_capabilities_over_exec`
    _checked(_libc.syscall(_SYS_CAPSET[_machine], _capability_header, held), "capset")
    prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, number)


def keep_capabilities_over_exec() -> None:
    """Let programs executed by this process keep its capabilities, although it is not user 0."""
    held = (ctypes.c_uint32 * 6)()
    _checked(_libc.syscall(_SYS_CAPGET[_machine], _capability_header, held), "capget")
    # Effective, permitted and inheritable; once for the lower half, once for the upper.
    held[2], held[5] = held[1], held[4]
    _checked(_libc.syscall(_SYS_CAPSET[_machine], _capability_header, held), "capset")
    for capability in range(64):
        if held[1 + 3 * (capability // 32)] >> capability % 32 & 1:
            prctl(PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def clone(flags: int) -> tuple[int, int]:
    """Fork with `CLONE_*` flags, for a child that never returns to Python's own ways of forking.

    Returns:
        The child's process id and pidfd; `(0, -1)` in the child.
    """
    pidfd = ctypes.c_int(-1)
    arguments = (ctypes.c_ulong(flags | CLONE_PIDFD | signal.SIGCHLD), None, ctypes.byref(pidfd), None, None)
    pid = _checked(_libc.syscall(_SYS_CLONE[_machine], *arguments), f"clone({flags:#x})")
    return pid, pidfd.value


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def apply_filter(instructions: bytes) -> None:
    """Restrict this process and everything it starts by a seccomp filter; needs `PR_SET_NO_NEW_PRIVS`."""
    program = _Filter(len(instructions) // _INSTRUCTION_BYTES, instructions)
    result = _libc.prctl(PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))
    _checked(result, "prctl(PR_SET_SECCOMP)")


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open `path` below the open folder `folder`, without following links or leaving the folder (Linux 5.6)."""
    no_magic_links, no_links, beneath = 0x02, 0x04, 0x08
    how = (ctypes.c_uint64 * 3)(flags | os.O_CLOEXEC, 0, no_magic_links | no_links | beneath)
    result = _libc.syscall(_SYS_OPENAT2, folder, os.fsencode(path), how, ctypes.c_size_t(24))
    return _checked(result, f"openat2({path})")


def landlock_abi() -> int:
    """Return the kernel's version of Landlock, which older ones lack."""
    return _checked(_libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock")


def landlock_create(handled: tuple[int, int, int]) -> int:
    """Create a ruleset of (file system accesses, network accesses, scopes) and return its descriptor."""
    attributes = (ctypes.c_uint64 * 3)(
        *handled
    )  # an older kernel accepts the longer struct if the unknown fields are zero
    result = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, attributes, ctypes.c_size_t(24), 0)
    return _checked(result, "landlock_create_ruleset")


def landlock_allow_beneath(ruleset: int, folder: int, accesses: int) -> None:
    """Allow accesses below an open folder."""

    class PathBeneath(ctypes.Structure):
        _pack_ = 1
        _fields_ = (("accesses", ctypes.c_uint64), ("folder", ctypes.c_int32))

    rule = PathBeneath(accesses, folder)
    result = _libc.syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
    _checked(result, "landlock_add_rule")


def landlock_restrict(ruleset: int) -> None:
    """Restrict this process and everything it starts by a ruleset; needs `PR_SET_NO_NEW_PRIVS`."""
    _checked(_libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
