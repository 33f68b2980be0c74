"""Where a job of tier C runs, and how all of it is ended: a folder of its own, and a slot that adopts what the job
leaves behind.
"""

import os

from code_judge_server import work_folder
from code_judge_server.jail import orphans
from code_judge_server.jail.enclosure import EnclosureError


class FolderEnclosure:
    """A fresh folder on the machine's own disk; nothing but rlimits bounds how much is written."""

    def __init__(self, folder: str, *, uid: int | None) -> None:
        """Use `folder`, which is made for each job; its parent must be there.

        Raises:
            OSError: the kernel refuses.
        """
        self._folder = folder
        self._uid = uid
        orphans.adopt()

    def open(self, disk_bytes: int, *, proc_is_writable: bool) -> None:
        """See `Enclosure`."""
        try:
            work_folder.let_users_through(os.path.dirname(self._folder))
            work_folder.make(self._folder, {})
            if self._uid is not None:
                os.chown(self._folder, self._uid, self._uid)
        except OSError as error:
            raise EnclosureError(f"work folder: {error}") from error

    def enter(self) -> None:
        """See `Enclosure`."""
        os.chdir(self._folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = self._folder

    def kill(self) -> None:
        """See `Enclosure`."""
        orphans.kill_below(os.getpid())

    def clear_out(self) -> None:
        """See `Enclosure`: the slot's own `kill` did it before it forked this process."""

    def close(self) -> float:
        """See `Enclosure`: everything falls to this subreaper in the end, so no child means nothing left."""
        cpu_time_s = orphans.end_all()
        work_folder.remove(self._folder)
        return cpu_time_s


def count_own_tasks() -> int:
    """Return the number of processes and threads of this user on the machine, a few milliseconds for hundreds of them."""
    found = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                found += len(os.listdir(f"{entry.path}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or is none of ours after all
    return found
