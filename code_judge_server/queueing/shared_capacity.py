"""Room that clients share: for submissions in the queue, for the bytes of requests and of replies, for sessions."""

import asyncio
from collections import Counter
from dataclasses import dataclass

_SHARE = 4
"""A client may hold this many times what is still free."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Newcomer:
    client: str
    amount: int
    called: asyncio.Future[None] | None = None
    """Done when it may be its turn."""

    def call(self) -> None:
        if self.called is not None and not self.called.done():
            self.called.set_result(None)


class SharedCapacity:
    """A bounded amount of which no client can take so much that nothing is left for another.

    A client may hold at most `_SHARE` times what is free at that moment, so that one alone gets to 80 %, and the first request
    of another still finds room (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on Networking 6(2), 1998). A
    client that holds nothing may take all that is free in one piece.

    Those who wait are served in the order in which they came; who has to wait for what its own client holds is passed by other
    clients, and by nobody else.
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
        """Wait until it is the client's turn and it may take so much; whoever awaits this must take it at once.

        Raises:
            TimeoutError: those who wait were turned away.
        """
        if not self._newcomers and self.fits(client, amount):
            return
        newcomer = _Newcomer(client=client, amount=amount)
        self._newcomers[newcomer] = None
        try:
            while (first := self._next_newcomer()) is not newcomer:
                if first is not None:
                    first.call()  # what looked like this one's turn when it was called is another's by now
                newcomer.called = asyncio.get_running_loop().create_future()
                await newcomer.called
                if newcomer not in self._newcomers:
                    raise TimeoutError
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
        newcomers, self._newcomers = self._newcomers, {}
        for newcomer in newcomers:
            newcomer.call()

    def _call_newcomer(self) -> None:
        newcomer = self._next_newcomer()
        if newcomer is not None:
            newcomer.call()

    def _next_newcomer(self) -> _Newcomer | None:
        passed_by: set[str] = set()
        for newcomer in self._newcomers:
            if newcomer.client in passed_by:
                continue
            if self.fits(newcomer.client, newcomer.amount):
                return newcomer
            if not self._waits_for_itself(newcomer):
                return None  # the room that it waits for is others', and whatever they give back is for it
            passed_by.add(newcomer.client)
        return None

    def _waits_for_itself(self, newcomer: _Newcomer) -> bool:
        """Tell whether it would not fit even if all others gave back what they hold."""
        held = self._held[newcomer.client]
        free = self.capacity - held
        return held > 0 and (newcomer.amount > free or held + newcomer.amount > _SHARE * free)
