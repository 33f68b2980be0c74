"""CPU time that is in nobody's account: a process whose parent ignores SIGCHLD takes its own away with it when it ends."""

from collections.abc import Mapping

_Process = tuple[int, int]
"""Process id, and when it started."""


class UnwaitedCpu:
    """Adds up what processes had used when they were last seen and that nobody was charged with after their end.

    What is gone is taken for lost at the second sample without it: it may only have been overlooked while it changed its
    parent, or been waited for after its parent was read. What lives and dies between two samples is not seen.
    """

    def __init__(self) -> None:
        self._seen: dict[_Process, tuple[int, int]] = {}
        self._gone: dict[_Process, int] = {}
        self._paid = 0
        self._reaped = 0
        self._lost = 0

    def update(self, ticks: Mapping[_Process, tuple[int, int]], *, reaped: int) -> int:
        """Return what was lost so far, in the unit of the arguments.

        Args:
            ticks: CPU time of each living process, and of the children that it has waited for.
            reaped: CPU time of what the one above them all has waited for.
        """
        before = self._reaped + sum(self._seen[process][1] for process in ticks if process in self._seen)
        paid = reaped + sum(waited for _, waited in ticks.values()) - before
        owed = sum(used for process, used in self._gone.items() if process not in ticks) - self._paid
        self._lost += max(0, owed - paid)
        self._paid = max(0, paid - max(0, owed))
        self._gone = {process: sum(used) for process, used in self._seen.items() if process not in ticks}
        self._seen, self._reaped = dict(ticks), reaped
        return self._lost
