"""The compiled start of jobs, `job_start.c`: each job of a zygote's slots starts from a snapshot of the zygote's memory.

Without it `slot` makes a job from a fork of itself.
"""

import ctypes
import errno
import os
import struct
from array import array
from collections.abc import Iterator
from contextlib import contextmanager

from code_judge_server.jail import protocol
from code_judge_server.jail.python import execution
from code_judge_server.jail.slot.confinement import Confinement
from code_judge_server.jail.slot.enclosure import NamespaceEnclosure

START = struct.Struct("=qiiiiiiiiIIQ")
"""`struct start`."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""The largest value that glibc accepts."""
_NUM_WORDS = 1 << 64


class JobStart:
    """The loaded library; an OSError says why it cannot be loaded."""

    def __init__(self, descriptor: int) -> None:
        # Not `CDLL`, which would release the interpreter's lock, so that the fork would have to take it back.
        library = ctypes.PyDLL(f"/proc/self/fd/{descriptor}", use_errno=True)
        self._take = library.snapshot_take
        self._try = library.try_snapshot
        self._keep_from_forks = library.snapshot_keep_from_forks
        self._start = library.start_job
        self._start.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
        self._arguments = library.job_arguments
        self._arguments.restype = ctypes.c_void_p
        self._num_bytes = ctypes.c_uint64()

    def keep_blocks_on_heap(self) -> None:
        """Allocate large blocks of memory on the heap, like small ones, from now on.

        A block with a mapping of its own would, in a job, be a mapping of the snapshot's file, and growing it would reach
        beyond the end of the file: a SIGBUS. glibc itself arrives at these thresholds in programs with large blocks.
        """
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD_BYTES)

    def take_snapshot(self) -> bool:
        """Take a snapshot of this process's memory and return False; every job that `fork` makes returns again, with True.

        Raises:
            OSError: the kernel refuses, or a process started from the snapshot does not survive.
        """
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError(errno.EBUSY, "a module has started a thread")
        returned = self._take()
        if returned < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if returned == 1 and not self.arguments():  # the trial fork
            os._exit(0)
        if returned == 0 and (tried := self._try()) != 1:
            if tried < 0:
                os._exit(1)  # no fork of this process would live
            raise OSError(errno.EIO, "a fork does not come through")
        return returned == 1

    def arguments(self) -> bytes:
        """Return, in a job, the arguments that `fork` was given."""
        address = self._arguments(ctypes.byref(self._num_bytes))
        return ctypes.string_at(address, self._num_bytes.value)

    def keep_memory_from_forks(self, kept: bool) -> None:
        """Make forks of this process cheaper: without the memory that jobs get from the snapshot; or whole again."""
        if self._keep_from_forks(int(kept)) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fork(self, message: bytes) -> int:
        """Fork a job, which continues where the snapshot was taken; return its process id, -1 on failure."""
        return self._start(message, len(message))


class JobMaker:
    """Makes the jobs of a slot from a snapshot, faster than by forks of the slot, which then lack most of its memory."""

    def __init__(self, job_start: JobStart, enclosure: NamespaceEnclosure, confinement: Confinement) -> None:
        self._job_start = job_start
        self._enclosure = enclosure
        self._confinement = confinement
        job_start.keep_memory_from_forks(True)

    @contextmanager
    def whole_forks(self) -> Iterator[None]:
        """Make forks inside the context have all memory."""
        self._job_start.keep_memory_from_forks(False)
        try:
            yield
        finally:
            self._job_start.keep_memory_from_forks(True)

    def fork_job(self, job: protocol.Message, descriptors: list[int], report: int, oom_score_adj: int) -> int:
        """Start a job in the open enclosure; return its process id, -1 if it cannot be forked.

        If the job cannot be set up, the reason goes to `report`.
        """
        uid, ruleset = self._confinement.uid, self._confinement.ruleset()
        arguments = execution.encode(job["argv"], interpret=job["interpret"])
        limits = self._confinement.rlimits(job["limits"])
        start = START.pack(
            -1 if uid is None else uid,
            self._enclosure.init_fd,
            -1 if ruleset is None else ruleset,
            oom_score_adj,
            *descriptors[:4],
            report,
            len(job["files"]),
            len(limits),
            len(arguments),
        )
        triples = [number % _NUM_WORDS for kind, both in limits.items() for number in (kind, *both)]  # -1 is no limit
        numbers = array("Q", [*job["files"], *triples])
        return self._job_start.fork(b"".join((start, numbers.tobytes(), arguments)))
