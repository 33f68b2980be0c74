"""Probes of the kernel's permissions for this user, by trial; `canaries` runs them in a process of its own that prints its
findings as JSON.

Each probe runs in a forked child; everything it creates ends with the child.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

from code_judge_server.jail.kernel import syscalls
from code_judge_server.jail.kernel.user_namespace import enter_user_namespace
from code_judge_server.jail.launch import loopback

_SCOPED_ABI = 6
_MIB = 1024 * 1024

Finding = tuple[str, bool, str]
"""Name of the probe, its success, and the observation."""


def main() -> None:
    """Print the findings of all probes."""
    probes: tuple[tuple[str, Callable[[], str]], ...] = (
        ("user namespace", _user_namespace),
        ("mount namespace", _mount_namespace),
        ("pid namespace", _pid_namespace),
        ("network namespace", _network_namespace),
        ("loopback", _loopback),
        ("ipc and uts namespaces", _ipc_and_uts_namespaces),
        ("joining namespaces", _joining),
        ("landlock", _landlock),
        ("landlock scopes or root", _scopes_or_root),
    )
    sys.stdout.write(json.dumps([(name, *_in_child(probe)) for name, probe in probes]))


def _in_child(probe: Callable[[], str]) -> tuple[bool, str]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, json.dumps((True, probe())).encode())
        except OSError as error:
            os.write(writing, json.dumps((False, str(error.strerror or error))).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as answer:
        text = answer.read()
    status = os.waitpid(pid, 0)[1]
    return tuple(json.loads(text)) if text else (False, f"ended with wait status {status:#x}")


def _become_root() -> None:
    if os.geteuid() != 0:
        enter_user_namespace()


def _user_namespace() -> str:
    if os.geteuid() == 0:
        return "not needed: this is root"
    enter_user_namespace()
    return f"user {os.getuid()} inside"


def _mount_namespace() -> str:
    _become_root()
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("canary", "/proc", "tmpfs", syscalls.MS_NOSUID, "size=1m,nr_inodes=16")
    os.mkdir("/proc/bound")
    syscalls.mount("/usr", "/proc/bound", None, syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.set_mount_attributes("/proc/bound", syscalls.MOUNT_ATTR_RDONLY)
    with open("/proc/full", "wb", buffering=0) as file:
        try:
            file.write(bytes(2 * _MIB))
            file.write(bytes(2 * _MIB))
        except OSError:
            return "tmpfs with a quota, read-only binds"
    raise OSError(0, "the quota of a tmpfs does not hold")


def _pid_namespace() -> str:
    _become_root()
    syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
    return _of_child(_first_process)


def _first_process() -> str:
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC, "subset=pid")
    return f"process {os.readlink('/proc/self')} of its own /proc"


def _network_namespace() -> str:
    _become_root()
    syscalls.unshare(syscalls.CLONE_NEWNET)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        try:
            udp.connect(("127.0.0.1", 9))
        except OSError:
            return "no interface is up in a new one"
    raise OSError(0, "a new one has a network")


def _loopback() -> str:
    _become_root()
    syscalls.unshare(syscalls.CLONE_NEWNET)
    loopback.bring_up()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.connect(("127.0.0.1", 9))
    return "up in a network namespace of its own"


def _ipc_and_uts_namespaces() -> str:
    _become_root()
    syscalls.unshare(syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
    socket.sethostname("canary")
    return "own host name"


def _joining() -> str:
    _become_root()
    pid, pidfd = syscalls.clone(
        syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
    )
    if pid == 0:
        syscalls.die_with_parent()
        signal.pause()
    try:
        syscalls.setns(pidfd, syscalls.CLONE_NEWPID)
        syscalls.setns(pidfd, syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS)
        return _of_child(lambda: f"joined by pidfd as process {os.getpid()}")
    finally:
        os.kill(pid, signal.SIGKILL)


def _landlock() -> str:
    return f"ABI {syscalls.landlock_abi()}"


def _scopes_or_root() -> str:
    """Return what keeps jobs from signalling this user's other processes in a shared pid namespace."""
    if syscalls.landlock_abi() >= _SCOPED_ABI:
        return "scopes"
    if os.geteuid() == 0:
        return "root: jobs are users of their own"
    raise OSError(0, f"Landlock has scopes from ABI {_SCOPED_ABI} on")


def _of_child(act: Callable[[], str]) -> str:
    passed, detail = _in_child(act)
    if not passed:
        raise OSError(0, detail)
    return detail
