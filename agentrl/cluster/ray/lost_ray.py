"""A signal to the whole process group, as of `timeout`, Slurm or systemd, ends this machine's Ray before the run can close it.

Every call to Ray then waits for its control store (GCS) for a minute, and Ray ends the process with words of its own.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

_NAME = "gcs_server"
is_closing = threading.Event()
"""Set while the run itself closes Ray, which may take its time."""


def wait_until_lost() -> bool:
    """Wait for the end of the control store that this process has started.

    Returns False where it has none, or where the run closed it.
    """
    for pid in _children():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == _NAME:
                pidfd = os.pidfd_open(pid)
                break
        except OSError:  # it ended meanwhile
            continue
    else:
        return False
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        poll.poll()
    finally:
        os.close(pidfd)
    return not is_closing.is_set()


def _children() -> list[int]:
    pids: list[int] = []
    for file in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread ended meanwhile
            pids += map(int, file.read_text().split())
    return pids
