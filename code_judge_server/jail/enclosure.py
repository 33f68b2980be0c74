"""Where a job runs and how all of it is ended: fresh namespaces with an init (tiers A and B)."""

import contextlib
import os
import signal
from typing import Protocol

from code_judge_server.jail import inits, syscalls
from code_judge_server.jail.inits import Inits
from code_judge_server.jail.jail_root import WORK_FOLDER
from code_judge_server.jail.proc_files import meminfo

_JOINED = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


class EnclosureError(Exception):
    """The place for a job could not be made."""


class Enclosure(Protocol):
    """The place of one job after the other, each fresh."""

    clears: bool
    """Whether `close` leaves files, for `clear` to remove."""
    reaping_interval_ms: int | None
    """Interval at which `reap` is to be called while a job runs; None: never."""

    def open(self, disk_bytes: int, *, memory_bytes: int, proc_is_writable: bool) -> None:
        """Make the place; what is forked from here on is of the job.

        Args:
            disk_bytes: Quota of its files.
            memory_bytes: Its memory limit, for `/proc/meminfo`, which it has where it has namespaces.
            proc_is_writable: Whether it may say how early the kernel kills it for want of memory, and so whether
                before its slot; without namespaces it always may.

        Raises:
            EnclosureError: it cannot be made.
        """
        ...

    def enter(self) -> None:
        """Move this process, a fork with all rights still, into the place."""
        ...

    def kill(self) -> None:
        """Kill all of the job; may be called again."""
        ...

    def reap(self, *, keep: int) -> None:
        """Wait for what the job has left and has ended, but for its process `keep`: it would count as running."""
        ...

    def clear_out(self) -> None:
        """Kill all of the job but this process, a fork that has not entered yet."""
        ...

    def close(self) -> float:
        """Kill what is left, wait until nothing is, and return the CPU time in s of what the slot did not wait for
        itself.
        """
        ...

    def clear(self) -> None:
        """Remove the files of a place that is closed, or could not be made; that takes as long as a job wants it to."""
        ...


class NamespaceEnclosure:
    """Fresh pid, mount, IPC and host name namespaces, with a work folder, `/tmp` and `/dev/shm` under one quota."""

    clears: bool = False
    reaping_interval_ms: int | None = None

    def __init__(self, helper: Inits) -> None:
        """Use the inits of this helper."""
        self._helper = helper
        self._init = -1
        self.init_fd = -1
        """Pidfd of the first process of the open place."""

    def open(self, disk_bytes: int, *, memory_bytes: int, proc_is_writable: bool) -> None:
        """See `Enclosure`."""
        try:
            self._init, self.init_fd = self._helper.start(
                disk_bytes, meminfo=meminfo(memory_bytes), proc_is_writable=proc_is_writable
            )
        except inits.InitError as error:
            raise EnclosureError(str(error)) from error
        try:
            syscalls.setns(self.init_fd, syscalls.CLONE_NEWPID)
        except ProcessLookupError as error:
            self.close()
            raise EnclosureError("init: it was killed") from error

    def enter(self) -> None:
        """See `Enclosure`."""
        self.forget()
        syscalls.setns(self.init_fd, _JOINED)
        os.chdir(WORK_FOLDER)

    def forget(self) -> None:
        """Have this object, in a fork of the slot, hold no descriptor of the slot's any more."""
        self._helper.forget()

    def kill(self) -> None:
        """See `Enclosure`."""
        inits.kill(self.init_fd)

    def reap(self, *, keep: int) -> None:
        """See `Enclosure`: the init does it."""

    def clear_out(self) -> None:
        """See `Enclosure`: in this pid namespace there is nothing else, and the init is spared."""
        with contextlib.suppress(ProcessLookupError):  # nothing was left
            os.kill(-1, signal.SIGKILL)

    def close(self) -> float:
        """See `Enclosure`."""
        return inits.end(self._init, self.init_fd)

    def clear(self) -> None:
        """See `Enclosure`: the mount that holds the files went with its namespace."""
