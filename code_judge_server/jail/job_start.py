"""The compiled way to make jobs, `job_start.c`: each job of a zygote's slots starts from a snapshot of the zygote's memory.

Elsewhere `slot` makes a job of a fork of itself.
"""

import ctypes
import errno
import os
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

START = struct.Struct("=qiiiiiiiiIIQ")
"""`struct start`."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024
"""The largest that glibc takes."""
_NUM_WORDS = 1 << 64


class JobStart:
    """The loaded library."""

    def __init__(self, descriptor: int) -> None:
        """Load it.

        Args:
            descriptor: of its file.

        Raises:
            OSError: it cannot be.
        """
        # Not `CDLL`, which would let go of the interpreter's lock: the fork would have to take it back.
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
        """Have large blocks of memory, from now on, lie where small ones do.

        One of a mapping of its own would in a job be a mapping of the snapshot's file, and growing reach beyond the end of
        that: a SIGBUS. The thresholds are those that glibc comes to by itself in programs with large blocks.
        """
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD_BYTES)

    def take_snapshot(self) -> bool:
        """Keep this process's memory as it is now; return False, and once more in every job that `fork` makes: True.

        Raises:
            OSError: the kernel refuses, or what starts from the snapshot does not come through.
        """
        if len(os.listdir("/proc/self/task")) > 1:
            raise OSError(errno.EBUSY, "a module has started a thread")
        returned = self._take()
        if returned < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        if returned == 1 and not self.arguments():  # the one that only tries
            os._exit(0)
        if returned == 0 and (tried := self._try()) != 1:
            if tried < 0:
                os._exit(1)  # no fork of this process would live
            raise OSError(errno.EIO, "a fork does not come through")
        return returned == 1

    def keep_memory_from_forks(self) -> None:
        """Have forks of this process come without the memory that jobs get from the snapshot: they cost less.

        Raises:
            OSError: the kernel refuses.
        """
        self._have_forks_without(1)

    @contextmanager
    def whole_forks(self) -> Iterator[None]:
        """Have forks come with all memory in between."""
        self._have_forks_without(0)
        try:
            yield
        finally:
            self._have_forks_without(1)

    def _have_forks_without(self, memory: int) -> None:
        if self._keep_from_forks(memory) < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def fork(
        self,
        *,
        init: int,
        ruleset: int | None,
        uid: int | None,
        oom_score_adj: int,
        descriptors: Sequence[int],
        report: int,
        sizes: Sequence[int],
        limits: Mapping[int, tuple[int, int]],
        arguments: bytes,
    ) -> int:
        """Fork a job, which goes on where the snapshot was taken; return its process id, -1 if there is none.

        Args:
            init: pidfd of the first process of its namespaces.
            ruleset: of Landlock, if there is one.
            uid: its user, if that is not this process's.
            oom_score_adj: of the job.
            descriptors: files and their names, stdin, stdout, stderr.
            report: where it writes why it could not be made.
            sizes: of the files.
            limits: soft and hard, of `resource.setrlimit`, by kind.
            arguments: what `arguments` gives the job.
        """
        start = START.pack(
            -1 if uid is None else uid,
            init,
            -1 if ruleset is None else ruleset,
            oom_score_adj,
            *descriptors[:4],
            report,
            len(sizes),
            len(limits),
            len(arguments),
        )
        triples = [number % _NUM_WORDS for kind, both in limits.items() for number in (kind, *both)]  # -1 is no limit
        message = b"".join((start, array("Q", [*sizes, *triples]).tobytes(), arguments))
        return self._start(message, len(message))

    def arguments(self) -> bytes:
        """Return, in a job, what `fork` was given for it."""
        address = self._arguments(ctypes.byref(self._num_bytes))
        return ctypes.string_at(address, self._num_bytes.value)
