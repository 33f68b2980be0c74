"""Folders that show by a lock that their server lives, as a process id means nothing in another pid namespace.

One is the folder of tier C for the jobs of a server.
"""

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from code_judge_server.sandbox import work_folder

SHARED, EXCLUSIVE = fcntl.LOCK_SH, fcntl.LOCK_EX
_PREFIX = "code-judge-jail-"


def lock(folder: Path, how: int) -> int:
    """Lock a folder, not a link, as `SHARED` (living servers do) or `EXCLUSIVE`; return the descriptor that holds the lock.

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


def make_work_root() -> tuple[str, int]:
    """Create the folder of this server; return it with the descriptor that keeps other servers from removing it."""
    _remove_stale()
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with contextlib.suppress(
            FileNotFoundError, BlockingIOError
        ):  # another server starts, and treats the folder as stale
            held = lock(Path(folder), SHARED)
            if os.path.isdir(folder):
                work_folder.let_users_through(folder)
                return folder, held
            os.close(held)


def _remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            held = lock(folder, EXCLUSIVE)
        except OSError:  # its server lives, it is already gone, or it belongs to another user
            continue
        with contextlib.suppress(OSError):
            work_folder.remove(str(folder))
        os.close(held)
