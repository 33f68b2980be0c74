"""Room that clients share: for submissions in the queue, for the bytes of requests and of replies, for sessions."""

import asyncio
from collections import Counter
from dataclasses import dataclass

_SHARE = 4
"""A client may hold this many times what is still free."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Newcomer:
    client: str
    amount: int
    called: asyncio.Future[None]


class SharedCapacity:
    """A bounded amount of which no client can take so much that nothing is left for another.

    A client may hold at most `_SHARE` times what is free at that moment, so that one alone gets to 80 %, and the first request
    of another still finds room (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A
    client that holds nothing may take all that is free in one piece.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._held: Counter[str] = Counter()
        self._newcomers: dict[_Newcomer, None] = {}

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for room."""
        return bool(self._newcomers)

    def fits(self, client: str, amount: int) -> bool:
        """Tell whether the client may take so much more now."""
        free = self.capacity - self.used
        held = self._held[client]
        return amount <= free and (held == 0 or held + amount <= _SHARE * free)

    async def until_fits(self, client: str, amount: int) -> None:
        """Wait until the client may take so much.

        Raises:
            TimeoutError: those who wait were turned away.
        """
        while not self.fits(client, amount):
            newcomer = _Newcomer(client=client, amount=amount, called=asyncio.get_running_loop().create_future())
            self._newcomers[newcomer] = None
            try:
                await newcomer.called
            finally:
                self._newcomers.pop(newcomer, None)
                self._call_newcomer()  # there may be room for one more, and this one may have gone away

    def take(self, client: str, amount: int) -> None:
        """Count so much as held by the client, whether it fits or not."""
        self.used += amount
        self._held[client] += amount

    def give_back(self, client: str, amount: int) -> None:
        """Take back what `take` counted, in one or several pieces."""
        self.used -= amount
        self._held[client] -= amount
        if self._held[client] <= 0:
            del self._held[client]
        self._call_newcomer()

    def turn_away(self) -> None:
        """Raise TimeoutError where somebody waits for room."""
        for newcomer in self._newcomers:
            if not newcomer.called.done():
                newcomer.called.set_exception(TimeoutError())
        self._newcomers.clear()

    def _call_newcomer(self) -> None:
        first = next((item for item in self._newcomers if self.fits(item.client, item.amount)), None)
        if first is not None:
            del self._newcomers[first]
            if not first.called.done():
                first.called.set_result(None)
