"""Content that a job may read and nobody can change: sealed files in memory."""

import fcntl
import os
from collections.abc import Iterable

_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_MAX_CHUNKS_PER_WRITE = 512
"""Below IOV_MAX, which is 1024 on Linux."""


def seal(name: str, chunks: Iterable[bytes]) -> int:
    """Return the descriptor, at offset 0, of a new file of these contents one after the other.

    Raises:
        OSError: no memory or no descriptors are left.
    """
    fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write_all(fd, [memoryview(chunk) for chunk in chunks if chunk])
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write_all(fd: int, pending: list[memoryview]) -> None:
    """Write at the start of the file, and leave its offset there."""
    offset = 0
    while pending:
        written = os.pwritev(fd, pending[:_MAX_CHUNKS_PER_WRITE], offset)
        offset += written
        while pending and written >= len(pending[0]):
            written -= len(pending.pop(0))
        if written:
            pending[0] = pending[0][written:]
