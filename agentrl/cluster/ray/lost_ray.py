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
    for children in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # that thread or process ended meanwhile
            for pid in children.read_text().split():
                if Path(f"/proc/{pid}/comm").read_text().strip() == _NAME:
                    with open(os.pidfd_open(int(pid))) as pidfd:
                        poll = select.poll()
                        poll.register(pidfd, select.POLLIN)
                        poll.poll()
                    return not is_closing.is_set()
    return False
