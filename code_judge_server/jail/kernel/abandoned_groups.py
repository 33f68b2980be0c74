"""The control groups of a server that was killed; its launcher, which outlives it for a moment, removes them."""

import contextlib
import os
import select
import time
from collections.abc import Iterable

_DEATH_TIMEOUT_MS = 20
"""Longest time between the end of the server's socket and the server's own end, if it was killed."""
_REMOVAL_TIMEOUT_S = 1.0
_PAUSE_S = 0.01


class AbandonedGroups:
    """The folders of all slots, and the descriptors to remove them from other namespaces."""

    def __init__(self, slots: Iterable[dict[str, str]]) -> None:
        """Open the parents of the folders, which are keyed by controller; the parent of this process is the server."""
        self._server = os.pidfd_open(os.getppid())
        self._groups: dict[tuple[int, str], list[str]] = {}
        above: dict[str, int] = {}
        for path in (path for folders in slots for path in folders.values()):
            server_folder, slot = os.path.split(path)
            parent, group = os.path.split(server_folder)
            if parent not in above:
                above[parent] = os.open(parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self._groups.setdefault((above[parent], group), []).append(f"{group}/{slot}")

    def remove_if_server_died(self) -> None:
        """Remove the groups if the server has died; no process is left in them."""
        poll = select.poll()
        poll.register(self._server, select.POLLIN)
        if not poll.poll(_DEATH_TIMEOUT_MS):
            return
        deadline = time.monotonic() + _REMOVAL_TIMEOUT_S
        while not self._remove() and time.monotonic() < deadline:
            time.sleep(_PAUSE_S)

    def close(self) -> None:
        """Close the descriptors in a fork that must not have them."""
        for descriptor in {self._server, *(parent for parent, _ in self._groups)}:
            os.close(descriptor)

    def _remove(self) -> bool:
        try:
            for (parent, group), slots in self._groups.items():
                for folder in (*slots, group):
                    with contextlib.suppress(FileNotFoundError):
                        os.rmdir(folder, dir_fd=parent)
        except OSError:  # the kernel has not finished with its processes
            return False
        return True
