"""Restrictions of jobs: those that a slot puts on itself for good, and those that each job puts on before its first
instruction.
"""

import math
import os
import resource
from collections.abc import Callable

from code_judge_server.jail.kernel import syscalls

_OPEN_FILES = 1024
_OPEN_FILES_UNCOUNTED = 256
"""Limit on open files where no group counts the buffers of pipes and sockets."""
_PENDING_SIGNALS = 256
_LOCKED_BYTES = 64 * 1024
"""The kernel also counts both over all jobs of an ordinary user: one job must not use up everything."""
_THREAD_STACK_BYTES = 8 * 1024 * 1024
_OPEN_FILES_WISHED = 4096
"""Limit to which a program may raise its own, where a group counts the cost."""
_TASKS_OF_SLOT = 8
"""Tasks of the slot, its helper and the init, if they have the job's user."""
_UNLIMITED = resource.RLIM_INFINITY
_LAST_DESCRIPTOR = 2**31 - 1


class Confinement:
    """The restrictions of the jobs of one slot."""

    def __init__(
        self,
        *,
        uid: int | None,
        ruleset: Callable[[], int | None],
        limits_memory: bool,
        tasks_besides: Callable[[], int],
        filter_of_jobs: bytes | None = None,
    ) -> None:
        """Prepare it.

        Args:
            uid: User of the jobs; None: the user of this process.
            ruleset: Returns the Landlock ruleset of a job.
            limits_memory: Use RLIMIT_DATA and RLIMIT_NPROC, because there is no control group.
            tasks_besides: Returns the number of tasks besides the job that RLIMIT_NPROC counts.
            filter_of_jobs: Seccomp filter, as BPF instructions, that each job puts on; None: the slot has put it on.
        """
        self.uid = uid
        self.ruleset = ruleset
        self._limits_memory = limits_memory
        self._tasks_besides = tasks_besides
        self._filter_of_jobs = filter_of_jobs
        wanted = (
            resource.RLIMIT_CPU,
            resource.RLIMIT_FSIZE,
            resource.RLIMIT_NOFILE,
            resource.RLIMIT_DATA,
            resource.RLIMIT_NPROC,
            resource.RLIMIT_SIGPENDING,
            resource.RLIMIT_MEMLOCK,
            resource.RLIMIT_STACK,
        )
        self._most = {limit: resource.getrlimit(limit)[1] for limit in wanted}

    def bind_slot(self, seccomp: bytes | None) -> None:
        """Put on the restrictions that this process and all of its jobs share, among them the filter `seccomp` if it is given.

        The filter lets a slot join namespaces and create Landlock rules: a job has no right to do the first and no use for the
        second. Putting it on takes longest of all, so only a slot that needs forbidden calls leaves it to each job.
        """
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
        if seccomp is not None:
            syscalls.apply_filter(seccomp)

    def rlimits(self, limits: dict) -> dict[int, tuple[int, int]]:
        """Return the soft and hard limits of a job, keyed by resource."""
        factor = limits.get("open_files_factor", 1)
        open_files = (_OPEN_FILES_UNCOUNTED if self._limits_memory else _OPEN_FILES) * factor
        most_files = open_files if self._limits_memory else max(open_files, _OPEN_FILES_WISHED)
        cpu_time_s = math.ceil(limits["cpu_time_s"]) + 1
        wanted = {
            resource.RLIMIT_CPU: (cpu_time_s, cpu_time_s),
            resource.RLIMIT_FSIZE: (limits["disk_bytes"], limits["disk_bytes"]),
            # Not the slot: the kernel limits the sender of descriptors, over all descriptors of this user.
            resource.RLIMIT_NOFILE: (open_files, most_files),
            resource.RLIMIT_SIGPENDING: (_PENDING_SIGNALS, _PENDING_SIGNALS),
            resource.RLIMIT_MEMLOCK: (_LOCKED_BYTES, _LOCKED_BYTES),
            # It counts as memory. With any other limit each thread of a C program would get a stack of that size.
            resource.RLIMIT_STACK: (_UNLIMITED, _UNLIMITED),
        }
        if self._limits_memory:
            # Both are rough: the server samples the actual use.
            data = 2 * limits["memory_bytes"] + limits["max_tasks"] * _THREAD_STACK_BYTES
            tasks = self._tasks_besides() + limits["max_tasks"] + _TASKS_OF_SLOT
            wanted |= {resource.RLIMIT_DATA: (data, data), resource.RLIMIT_NPROC: (tasks, tasks)}
        return {
            kind: (_at_most(soft, self._most[kind]), _at_most(hard, self._most[kind]))
            for kind, (soft, hard) in wanted.items()
        }

    def set_limits(self, limits: dict) -> None:
        """Set the limits of this process, which becomes a job."""
        for kind, both in self.rlimits(limits).items():
            resource.setrlimit(kind, both)

    def become_user(self) -> None:
        """Become the job's user, and drop every capability for good: the slot's bounding set is empty."""
        if self.uid is None:
            syscalls.drop_capabilities()
        else:
            os.setresuid(self.uid, self.uid, self.uid)
        syscalls.prctl(syscalls.PR_SET_DUMPABLE, 1)  # otherwise it may not open its own /proc/self/fd

    def lock_in(self) -> None:
        """Put on Landlock and the filter, and keep only the standard descriptors."""
        ruleset = self.ruleset()
        if ruleset is not None:
            syscalls.landlock_restrict(ruleset)
        if self._filter_of_jobs is not None:
            syscalls.apply_filter(self._filter_of_jobs)
        os.closerange(3, _LAST_DESCRIPTOR)


def _at_most(value: int, most: int) -> int:
    if most == _UNLIMITED or value == _UNLIMITED:
        return most if value == _UNLIMITED else value
    return min(value, most)
