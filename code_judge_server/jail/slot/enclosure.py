"""The enclosure of a job, in which all of it can be ended: fresh namespaces with an init (tiers A and B)."""

import contextlib
import os
import signal
from typing import Protocol

from code_judge_server.jail.kernel import syscalls
from code_judge_server.jail.kernel.jail_root import WORK_FOLDER, meminfo
from code_judge_server.jail.slot import inits
from code_judge_server.jail.slot.inits import Inits

_JOINED = syscalls.CLONE_NEWNS | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS


class EnclosureError(Exception):
    """The enclosure of a job could not be created."""


class Enclosure(Protocol):
    """An enclosure for one job after the other, each time fresh."""

    clears: bool
    """True if `close` leaves files, which `clear` removes."""
    reaping_interval_ms: int | None
    """Interval at which `reap` must be called while a job runs; None: never."""

    def open(self, disk_bytes: int, *, memory_bytes: int, proc_is_writable: bool) -> None:
        """Create the enclosure; forks from now on belong to the job.

        Args:
            disk_bytes: Quota of its files.
            memory_bytes: Its memory limit, shown in `/proc/meminfo` if it has namespaces.
            proc_is_writable: Let it set its OOM score, and so choose whether the kernel kills it before its slot; without
                namespaces it always may.

        Raises:
            EnclosureError: it cannot be created.
        """
        ...

    def enter(self) -> None:
        """Move this process, a fork that still has all rights, into the enclosure."""
        ...

    def kill(self) -> None:
        """Kill the whole job; may be called repeatedly."""
        ...

    def reap(self, *, keep: int) -> None:
        """Reap ended processes of the job except `keep`; without this they would count as running."""
        ...

    def clear_out(self) -> None:
        """Kill the whole job except this process, a fork that has not entered yet."""
        ...

    def close(self) -> float:
        """Kill the remaining processes, wait until none is left, and return the CPU time in s of those that the slot did not
        reap itself.
        """
        ...

    def clear(self) -> None:
        """Remove the files of a closed or failed enclosure; a job can make this take long."""
        ...


class NamespaceEnclosure:
    """Fresh pid, mount, IPC and host name namespaces, with a work folder, `/tmp` and `/dev/shm` under one quota."""

    clears: bool = False
    reaping_interval_ms: int | None = None

    def __init__(self, helper: Inits) -> None:
        self._helper = helper
        self._init = -1
        self.init_fd = -1
        """Pidfd of the init of the open enclosure."""

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
        """Drop the slot's descriptors from this object, in a fork of the slot."""
        self._helper.forget()

    def kill(self) -> None:
        """See `Enclosure`."""
        inits.kill(self.init_fd)

    def reap(self, *, keep: int) -> None:
        """See `Enclosure`: the init reaps."""

    def clear_out(self) -> None:
        """See `Enclosure`: this pid namespace holds nothing else, and the init is spared."""
        with contextlib.suppress(ProcessLookupError):  # nothing was left
            os.kill(-1, signal.SIGKILL)

    def close(self) -> float:
        """See `Enclosure`."""
        return inits.end(self._init, self.init_fd)

    def clear(self) -> None:
        """See `Enclosure`: the mount of the files is gone with its namespace."""
