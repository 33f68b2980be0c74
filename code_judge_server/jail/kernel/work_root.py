"""Tier C: the folder that contains a folder for each slot's jobs; folders of servers that were killed are removed."""

import contextlib
import os
import tempfile
from pathlib import Path

from code_judge_server.jail.kernel import folder_lock
from code_judge_server.sandbox import work_folder

_PREFIX = "code-judge-jail-"


def make_work_root() -> tuple[str, int]:
    """Create the folder of this server; return it with the descriptor that keeps other servers from removing it.

    Raises:
        OSError: it cannot be created.
    """
    _remove_stale()
    while True:
        folder = tempfile.mkdtemp(prefix=_PREFIX)
        with contextlib.suppress(
            FileNotFoundError, BlockingIOError
        ):  # another server starts, and treats the folder as stale
            lock = folder_lock.lock(Path(folder), folder_lock.SHARED)
            if os.path.isdir(folder):
                work_folder.let_users_through(folder)
                return folder, lock
            os.close(lock)


def _remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.geteuid():
                continue
            lock = folder_lock.lock(folder, folder_lock.EXCLUSIVE)
        except OSError:  # its server lives, it is already gone, or it belongs to another user
            continue
        with contextlib.suppress(OSError):
            work_folder.remove(str(folder))
        os.close(lock)
