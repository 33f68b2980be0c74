"""The slot's end of the helper that creates the namespaces of its jobs: `namespace_init.c`, or `python_init` without it."""

import array
import errno
import os
import select
import signal
import socket
import struct
from typing import NoReturn

from code_judge_server.jail.kernel import syscalls
from code_judge_server.jail.native import python_init

REQUEST = struct.Struct("=QQIIII")
"""Bytes and inodes of the disk quota, user and group of the job's folders, namespaces, flags of the mount of `/proc`:
`struct request`, after which comes the content of `/proc/meminfo`."""
REPLY = struct.Struct("=iii")
"""Process id, step that failed, error: `struct reply`."""

_NAMESPACES = syscalls.CLONE_NEWPID | syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
_STEPS = (
    "", "mount /proc", "mount the quota", "make folders", "limit /proc", "bind /tmp", "bind /dev/shm", "bind /sandbox",
)  # fmt: skip
_INODE_BYTES = 4096
_MIN_INODES, _MAX_INODES = 1024, 65536
_OWN_INODES = 5
"""Inodes of the root, the three folders, and the file that is shown as `/proc/meminfo`."""
_OWN_BYTES = 4096
"""Bytes of the file that is shown as `/proc/meminfo`."""
_ANCILLARY_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)


class InitError(Exception):
    """The helper could not create the namespaces of a job."""


class Inits:
    """Creates inits, each pid 1 of fresh namespaces with a work folder, `/tmp` and `/dev/shm` under one quota."""

    def __init__(self, binary: int | None, *, uid: int, shown_in_tmp: list[str]) -> None:
        """Start the helper.

        Args:
            binary: Descriptor of the compiled helper; None: a fork of this process is the helper.
            uid: Owner of the jobs' folders.
            shown_in_tmp: Folders below /tmp that every job sees in its own /tmp.
        """
        self._uid = uid
        self._own_inodes = _OWN_INODES + sum(path.count("/") for path in shown_in_tmp)
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        if os.fork() == 0:
            _be_helper(binary, theirs, shown_in_tmp)
        theirs.close()

    def fileno(self) -> int:
        """Return the descriptor that hangs up when the helper dies."""
        return self._socket.fileno()

    def start(self, disk_bytes: int, *, meminfo: bytes, proc_is_writable: bool) -> tuple[int, int]:
        """Create the namespaces of a job; return the init's process id (as this process sees it) and pidfd.

        The init is a child of this process: killing it ends everything in its namespaces, and after it is reaped nothing is
        left.

        Args:
            disk_bytes: Quota of the job's files.
            meminfo: Content of its `/proc/meminfo`, at most `jail_root.MEMINFO_MAX_BYTES`.
            proc_is_writable: See `Enclosure.open`.

        Raises:
            InitError: they could not be created.
            OSError: the helper is dead, and this slot unusable.
        """
        inodes = min(max(disk_bytes // _INODE_BYTES, _MIN_INODES), _MAX_INODES) + self._own_inodes
        proc_flags = 0 if proc_is_writable else syscalls.MS_RDONLY
        request = REQUEST.pack(disk_bytes + _OWN_BYTES, inodes, self._uid, self._uid, _NAMESPACES, proc_flags)
        self._socket.send(request + meminfo)
        pid, pidfd, failure = self._receive()
        if pidfd is None:  # the init was faster than the helper
            pid, pidfd, _ = self._receive()
            assert pidfd is not None
        else:
            failure = self._receive_failure(pidfd)
        if failure is not None:
            end(pid, pidfd)
            raise InitError(failure)
        return pid, pidfd

    def _receive_failure(self, pidfd: int) -> str | None:
        """Return the init's failure, if any; an init that is killed before it answers reports none."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        poll.register(pidfd, select.POLLIN)
        if self._socket.fileno() in [descriptor for descriptor, _ in poll.poll()]:
            return self._receive()[2]
        return "init: it was killed"

    def forget(self) -> None:
        """Drop the socket from this object, in a fork of the slot."""
        self._socket.detach()

    def _receive(self) -> tuple[int, int | None, str | None]:
        """Return process id, pidfd and failure: the first two from the helper's reply, the last, if any, from the init's."""
        data, ancillary, _, _ = self._socket.recvmsg(REPLY.size, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        if len(data) != REPLY.size:
            raise OSError(errno.EPIPE, os.strerror(errno.EPIPE))
        pid, step, error = REPLY.unpack(data)
        if step < 0:
            raise InitError(f"init: clone: {os.strerror(error)}")
        pidfd = array.array("i", ancillary[0][2])[0] if ancillary else None
        return pid, pidfd, f"init: {_STEPS[step]}: {os.strerror(error)}" if step else None


def kill(pidfd: int) -> None:
    """Let an init kill everything in its namespaces, and end."""
    signal.pidfd_send_signal(pidfd, signal.SIGTERM)


def end(pid: int, pidfd: int) -> float:
    """Kill an init and everything in its namespaces, wait until nothing is left, and return the CPU time in s of the init
    and its orphans.
    """
    kill(pidfd)
    usage = os.wait4(pid, 0)[2]
    os.close(pidfd)
    return usage.ru_utime + usage.ru_stime


def _be_helper(binary: int | None, slot: socket.socket, shown_in_tmp: list[str]) -> NoReturn:
    try:
        if binary is None:
            python_init.serve(slot, REQUEST, REPLY, shown_in_tmp)
        syscalls.keep_capabilities_over_exec()
        slot.set_inheritable(True)
        os.execve(binary, ["init", str(slot.fileno()), *shown_in_tmp], {})
    finally:
        os._exit(1)
