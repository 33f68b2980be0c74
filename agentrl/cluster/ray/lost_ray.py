"""A signal to the whole process group, as of `timeout`, Slurm or systemd, ends this machine's Ray before the run can close it.

Every call to Ray, also `ray.shutdown`, then waits a minute for its control store (GCS), and Ray ends the process.
"""

import contextlib
import os
import select
from pathlib import Path

_NAME = "gcs_server"
_control_stores: list[int] = []
"""Handles (pidfd) of the control stores that this process has started, open until it ends."""


def watch_control_store() -> None:
    """Get a handle of the control store that this process has just started."""
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError):  # that thread has ended
            _control_stores.extend(
                os.pidfd_open(int(pid)) for pid in children.read_text().split() if _is_control_store(pid)
            )


def wait_until_lost() -> bool:
    """Wait for the end of the newest watched control store, whoever ended it; returns False where there is none."""
    if not _control_stores:
        return False
    poll = select.poll()
    poll.register(_control_stores[-1], select.POLLIN)
    poll.poll()
    return True


def _is_control_store(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == _NAME
    except FileNotFoundError:  # it has ended
        return False
