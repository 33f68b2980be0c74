"""The enclosure of a job in tier C: a folder of its own, and a slot that adopts the job's orphans."""

import contextlib
import os
import stat

from code_judge_server.jail.kernel import orphans
from code_judge_server.jail.slot.enclosure import EnclosureError
from code_judge_server.sandbox import work_folder


class FolderEnclosure:
    """A fresh folder on the machine's own disk; only rlimits bound the files written."""

    clears: bool = True
    reaping_interval_ms: int | None = 50

    def __init__(self, slot_folder: str, *, uid: int | None) -> None:
        """Use `slot_folder`, which belongs to this slot alone; its parent must exist."""
        self.folder = f"{slot_folder}/job"
        """Folder of the current job, created for each."""
        self._slot_folder = slot_folder
        self._uid = uid
        self._reaped_cpu_time_s = 0.0
        orphans.adopt()

    def open(self, disk_bytes: int, *, memory_bytes: int, proc_is_writable: bool) -> None:
        """See `Enclosure`."""
        try:
            work_folder.let_users_through(os.path.dirname(self._slot_folder))
            work_folder.ensure(self._slot_folder, lets_users_through=True)
            self._move_aside()
            os.mkdir(self.folder, stat.S_IRWXU)
            if self._uid is not None:
                os.chown(self.folder, self._uid, self._uid)
        except OSError as error:
            raise EnclosureError(f"work folder: {error}") from error

    def enter(self) -> None:
        """See `Enclosure`."""
        os.chdir(self.folder)
        os.environ["HOME"] = os.environ["TMPDIR"] = self.folder

    def kill(self) -> None:
        """See `Enclosure`."""
        orphans.kill_below(os.getpid())

    def reap(self, *, keep: int) -> None:
        """See `Enclosure`."""
        self._reaped_cpu_time_s += orphans.reap(keep=(keep,))

    def clear_out(self) -> None:
        """See `Enclosure`: the slot's own `kill` did it before it forked this process."""

    def close(self) -> float:
        """See `Enclosure`: every process falls to this subreaper in the end, so no child means nothing is left."""
        reaped_cpu_time_s, self._reaped_cpu_time_s = self._reaped_cpu_time_s, 0.0
        return reaped_cpu_time_s + orphans.end_all()

    def clear(self) -> None:
        """See `Enclosure`."""
        work_folder.clear(self._slot_folder)

    def _move_aside(self) -> None:
        """Move away the folder of a killed slot; `clear` removes it, as doing it now would delay this job."""
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder, f"{self._slot_folder}/left-{os.urandom(8).hex()}")


def count_own_tasks() -> int:
    """Return the number of this user's processes and threads on the machine; takes a few milliseconds for hundreds of them."""
    num_tasks = 0
    for entry in os.scandir("/proc"):
        try:
            if entry.name.isdigit() and entry.stat().st_uid == os.getuid():
                num_tasks += len(os.listdir(f"{entry.path}/task"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended, or belongs to another user
    return num_tasks
