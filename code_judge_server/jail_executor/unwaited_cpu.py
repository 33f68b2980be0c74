"""CPU time missing from all accounts: if a parent ignores SIGCHLD, the time of its ended children is lost."""

from collections.abc import Mapping

_Process = tuple[int, int]
"""Process id, and start time."""


class UnwaitedCpu:
    """Adds up the CPU time of ended processes that no living process was charged with.

    A process is counted at the second sample without it: it may have been missed while it changed its parent, or waited for
    after its parent was read. Processes that start and end between two samples are not seen.
    """

    def __init__(self) -> None:
        self._seen: dict[_Process, tuple[int, int]] = {}
        self._gone: dict[_Process, int] = {}
        self._paid = 0
        self._reaped = 0
        self._lost = 0

    def update(self, ticks: Mapping[_Process, tuple[int, int]], *, reaped: int) -> int:
        """Return the CPU time lost so far, in the unit of the arguments.

        Args:
            ticks: CPU time of each living process, and of the children it has waited for.
            reaped: CPU time of the children that the common ancestor has waited for.
        """
        before = self._reaped + sum(self._seen[process][1] for process in ticks if process in self._seen)
        paid = reaped + sum(waited for _, waited in ticks.values()) - before
        owed = sum(used for process, used in self._gone.items() if process not in ticks) - self._paid
        self._lost += max(0, owed - paid)
        self._paid = max(0, paid - max(0, owed))
        self._gone = {process: sum(used) for process, used in self._seen.items() if process not in ticks}
        self._seen, self._reaped = dict(ticks), reaped
        return self._lost
