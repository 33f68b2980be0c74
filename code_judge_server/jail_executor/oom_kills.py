"""Detection of OOM kills in a slot's control group that no slot has reported."""

from collections.abc import Callable


class OomKills:
    """The OOM kills in the group that the slots of one number share.

    Args:
        count: Reads the kernel's counter.
    """

    def __init__(self, count: Callable[[], int]) -> None:
        self._count = count
        self._num_known = count()

    def take_new(self) -> bool:
        """Return whether there were any since the last call."""
        before, self._num_known = self._num_known, self._count()
        return self._num_known > before
