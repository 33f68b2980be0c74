"""Locks on folders that say that their server lives: its process id says nothing to one in another pid namespace."""

import fcntl
import os
from pathlib import Path

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX


def lock(folder: Path, how: int) -> int:
    """Lock a folder, and return the descriptor whose end lets go of it.

    Args:
        folder: To be locked; no link.
        how: `SHARED`, as living servers do, or `EXCLUSIVE`.

    Raises:
        OSError: it is not there, closed to this user, or locked otherwise by another process.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor
