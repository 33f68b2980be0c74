"""Replacements for shared objects of `multiprocessing` in tier C, where jobs must not share `/dev/shm`, which Python uses.

Semaphores are the C library's, in memory shared between a process and its forks, so only the start method `fork` has them.
Shared memory is files in the temporary folder.
"""

import _multiprocessing  # pyright: ignore[reportMissingImports]
import _posixshmem  # pyright: ignore[reportMissingImports]
import ctypes
import errno
import importlib.machinery
import mmap
import os
import sys
import time
from _thread import get_ident
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_RECURSIVE_MUTEX = 0
_REGION_BYTES = 4 * 1024 * 1024
"""Most bytes that a job may share without a file, also charged per region: `seccomp_filter.SHARED_REGION_MAX_BYTES`."""
_SEMAPHORE_BYTES = 64
"""An upper bound on the size of `sem_t`."""
_HEAP = "multiprocessing.heap"

_libc = ctypes.CDLL(None, use_errno=True)


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Region:
    """Shared memory for the semaphores of a process; no place is reused, as a fork may still use it."""

    def __init__(self) -> None:
        self._pid = -1
        self._memory: mmap.mmap | None = None
        self._taken = 0

    def take(self) -> ctypes.Array[ctypes.c_char]:
        if self._memory is None or self._pid != os.getpid() or self._taken == _REGION_BYTES:
            self._pid, self._memory, self._taken = os.getpid(), mmap.mmap(-1, _REGION_BYTES), 0
        start, self._taken = self._taken, self._taken + _SEMAPHORE_BYTES
        return (ctypes.c_char * _SEMAPHORE_BYTES).from_buffer(self._memory, start)


_region = _Region()


class SemLock:
    """A `_multiprocessing.SemLock`: same arguments, methods and errors."""

    SEM_VALUE_MAX = 2**31 - 1

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if not unlink:
            raise PermissionError(errno.EACCES, "multiprocessing: only the start method `fork` has semaphores here")
        self.kind = kind
        self.maxvalue = maxvalue
        self.name = None
        self._held = 0
        self._owner = 0
        self._semaphore = _region.take()
        self.handle = ctypes.addressof(self._semaphore)
        _checked(_libc.sem_init(self._semaphore, 1, value))

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Acquire it; return False if that fails within `timeout`."""
        if self.kind == _RECURSIVE_MUTEX and self._is_mine():
            self._held += 1
            return True
        until = None if timeout is None else time.time() + max(0.0, timeout)
        while not self._try(block, until):
            if (number := ctypes.get_errno()) in (errno.EAGAIN, errno.ETIMEDOUT):
                return False
            if number != errno.EINTR:  # handlers of signals run between two tries
                raise OSError(number, os.strerror(number))
        self._held += 1
        self._owner = get_ident()
        return True

    def _try(self, block: bool, until: float | None) -> bool:
        if _libc.sem_trywait(self._semaphore) == 0:
            return True
        if not block:
            return False
        if until is None:
            return _libc.sem_wait(self._semaphore) == 0
        deadline = _TimeSpec(int(until), int(until % 1 * 1e9))
        return _libc.sem_timedwait(self._semaphore, ctypes.byref(deadline)) == 0

    def release(self) -> None:
        """Release it."""
        if self.kind == _RECURSIVE_MUTEX:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        _checked(_libc.sem_post(self._semaphore))
        self._held -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == get_ident()

    def _get_value(self) -> int:
        value = ctypes.c_int()
        _checked(_libc.sem_getvalue(self._semaphore, ctypes.byref(value)))
        return value.value

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0


class _HeapInTemporaryFolder:
    """Finder that makes `multiprocessing.heap` (of `Value` and `Array`) create its files in the temporary folder."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find only that module."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name == _HEAP else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.Arena._dir_candidates = []

        spec.loader.exec_module = exec_module
        return spec


def _shm_open(path: str, flags: int, mode: int = 0o777) -> int:
    return os.open(_file_of(path), flags, mode)


def _shm_unlink(path: str) -> None:
    os.unlink(_file_of(path))


def _file_of(path: str) -> str:
    return os.path.join(os.environ.get("TMPDIR", "."), f".shm-{path.lstrip('/')}")


def install() -> None:
    """Use these replacements in programs of this interpreter and of its forks."""
    _multiprocessing.SemLock = SemLock
    _posixshmem.shm_open, _posixshmem.shm_unlink = _shm_open, _shm_unlink
    sys.meta_path.insert(0, _HeapInTemporaryFolder)


def _checked(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
