"""Locks on folders that show that their server lives; a process id means nothing in another pid namespace."""

import fcntl
import os
from pathlib import Path

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


def lock(folder: Path, how: int) -> int:
    """Lock a folder, and return the descriptor that holds the lock.

    Args:
        folder: The folder to lock; not a link.
        how: `SHARED`, as living servers do, or `EXCLUSIVE`.

    Raises:
        OSError: the folder is missing, not accessible, or locked by another process.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
