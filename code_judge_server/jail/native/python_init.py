"""The helper of `inits` without a compiler: like `namespace_init.c`, in a fork of the interpreter.

Documented fallback: each init is a fork of a Python process with all its modules, which costs milliseconds per job.
"""

import array
import contextlib
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from typing import NoReturn

from code_judge_server.jail.kernel import syscalls
from code_judge_server.jail.kernel.jail_root import CPUINFO, MEMINFO_MAX_BYTES

_REAPED_AT_ONCE = 64
_FLAGS = syscalls.MS_NOSUID | syscalls.MS_NODEV


def serve(slot: socket.socket, request: struct.Struct, reply: struct.Struct, shown_in_tmp: list[str]) -> NoReturn:
    """Answer requests as the compiled helper does, until the slot ends."""
    syscalls.die_with_parent()
    while True:
        data = slot.recv(request.size + MEMINFO_MAX_BYTES)
        if len(data) < request.size:
            os._exit(0)
        disk_bytes, inodes, uid, gid, namespaces, proc_flags = request.unpack(data[: request.size])
        meminfo = data[request.size :]
        try:
            pid, pidfd = syscalls.clone(namespaces | syscalls.CLONE_PARENT)
        except OSError as error:
            slot.send(reply.pack(-1, -1, error.errno))
            continue
        if pid == 0:
            _be_init(
                slot,
                reply,
                lambda: _make_mounts(disk_bytes, inodes, uid, gid, proc_flags, meminfo, shown_in_tmp),  # noqa: B023
            )
        fds = array.array("i", [pidfd])
        slot.sendmsg([reply.pack(pid, 0, 0)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        os.close(pidfd)


def _be_init(slot: socket.socket, reply: struct.Struct, make_mounts: Callable[[], tuple[int, int]]) -> NoReturn:
    try:
        signals = signal.valid_signals()
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        syscalls.die_with_parent()
        slot.send(reply.pack(0, *make_mounts()))
        os.closerange(0, 1024)
        while True:
            reaped = _reap(os.WNOHANG, at_most=_REAPED_AT_ONCE)
            received = signal.sigtimedwait(signals, 0.0) if reaped == _REAPED_AT_ONCE else signal.sigwaitinfo(signals)
            if received is not None and received.si_signo == signal.SIGTERM and received.si_pid == 0:
                break
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        _reap(0, at_most=sys.maxsize)
    finally:
        os._exit(1)


def _make_mounts(
    disk_bytes: int, inodes: int, uid: int, gid: int, proc_flags: int, meminfo: bytes, shown_in_tmp: list[str]
) -> tuple[int, int]:
    """Return the failed step, as numbered in `namespace_init.c`, and its error; zeros on success."""
    flags_of_proc = _FLAGS | syscalls.MS_NOEXEC | proc_flags
    quota = f"size={disk_bytes},nr_inodes={inodes},mode=0755"

    def folders() -> None:
        for name, mode in (("tmp", 0o1777), ("shm", 0o1777), ("work", 0o755)):
            os.mkdir(f"/sandbox/{name}", 0o700)
            os.chown(f"/sandbox/{name}", uid, gid)
            os.chmod(f"/sandbox/{name}", mode)

    def limit_proc() -> None:
        file = os.open("/sandbox/meminfo", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o444)
        os.write(file, meminfo)
        os.close(file)
        syscalls.mount("/sandbox/meminfo", "/proc/meminfo", None, syscalls.MS_BIND)
        read_only = syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY
        syscalls.mount("none", "/proc/meminfo", None, _FLAGS | read_only)
        syscalls.mount(CPUINFO, "/proc/cpuinfo", None, syscalls.MS_BIND)
        syscalls.mount("proc", "/proc", "proc", flags_of_proc | syscalls.MS_REMOUNT, "subset=pid")

    def tmp() -> None:
        for path in shown_in_tmp:
            os.makedirs(f"/sandbox{path}", exist_ok=True)
            syscalls.mount(path, f"/sandbox{path}", None, syscalls.MS_BIND | syscalls.MS_REC)
        syscalls.mount("/sandbox/tmp", "/tmp", None, syscalls.MS_BIND | syscalls.MS_REC)

    steps = (
        lambda: syscalls.mount("proc", "/proc", "proc", flags_of_proc),
        lambda: syscalls.mount("tmpfs", "/sandbox", "tmpfs", _FLAGS, quota),
        folders,
        limit_proc,
        tmp,
        lambda: syscalls.mount("/sandbox/shm", "/dev/shm", None, syscalls.MS_BIND),
        lambda: syscalls.mount("/sandbox/work", "/sandbox", None, syscalls.MS_BIND),
    )
    for number, step in enumerate(steps, start=1):
        try:
            step()
        except OSError as error:
            return number, error.errno or 0
    return 0, 0


def _reap(options: int, *, at_most: int) -> int:
    """Reap children, and return their number; orphans may come as fast as they are reaped."""
    reaped = 0
    with contextlib.suppress(ChildProcessError):
        while reaped < at_most and os.waitpid(-1, options)[0] > 0:
            reaped += 1
    return reaped
