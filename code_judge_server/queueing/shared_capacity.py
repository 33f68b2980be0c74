"""Capacity that clients share: submissions in the queue, bytes of requests and replies, sessions."""

import asyncio
from collections import Counter
from dataclasses import dataclass

_SHARE = 4
"""A client may hold this many times the free amount."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Newcomer:
    client: str
    amount: int
    called: asyncio.Future[None] | None = None
    """Future that is done when its turn may have come."""

    def call(self) -> None:
        if self.called is not None and not self.called.done():
            self.called.set_result(None)


class SharedCapacity:
    """A bounded amount, of which no client can take so much that nothing is left for others.

    A client may hold at most `_SHARE` times the amount free at that moment, so one client alone gets to 80 %, and the first
    request of another still finds room (dynamic thresholds, Choudhury and Hahne, IEEE/ACM Transactions on
    Networking 6(2), 1998). A client that holds nothing may take everything that is free in one piece.

    Waiting requests are served in the order of arrival. Only one whose own client holds too much is overtaken, and only by
    other clients.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.used = 0
        self._held: Counter[str] = Counter()
        self._newcomers: dict[_Newcomer, None] = {}

    @property
    def has_waiters(self) -> bool:
        """True if a request waits for room."""
        return bool(self._newcomers)

    def fits(self, client: str, amount: int) -> bool:
        """Return whether the client may take this amount now."""
        free = self.capacity - self.used
        held = self._held[client]
        return amount <= free and (held == 0 or held + amount <= _SHARE * free)

    async def wait_until_fits(self, client: str, amount: int) -> None:
        """Wait until it is the client's turn and it may take this amount; the caller must take it at once.

        Raises:
            TimeoutError: `refuse_waiting` was called.
        """
        if not self._newcomers and self.fits(client, amount):
            return
        newcomer = _Newcomer(client=client, amount=amount)
        self._newcomers[newcomer] = None
        try:
            while (first := self._next_newcomer()) is not newcomer:
                if first is not None:
                    first.call()  # the room that this caller saw is another's now
                newcomer.called = asyncio.get_running_loop().create_future()
                await newcomer.called
                if newcomer not in self._newcomers:
                    raise TimeoutError
        finally:
            self._newcomers.pop(newcomer, None)
            self._call_newcomer()  # there may be room for another, and this caller may have been cancelled

    def take(self, client: str, amount: int) -> None:
        """Add an amount to what the client holds, whether it fits or not."""
        self.used += amount
        self._held[client] += amount

    def give_back(self, client: str, amount: int) -> None:
        """Subtract an amount that `take` added, in one or several pieces."""
        self.used -= amount
        self._held[client] -= amount
        if self._held[client] <= 0:
            del self._held[client]
        self._call_newcomer()

    def refuse_waiting(self) -> None:
        """Raise TimeoutError in every `wait_until_fits` that waits."""
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
                return None  # it waits for room that others hold, and gets it first
            passed_by.add(newcomer.client)
        return None

    def _waits_for_itself(self, newcomer: _Newcomer) -> bool:
        """Return whether it would not fit even if all other clients gave back what they hold."""
        held = self._held[newcomer.client]
        free = self.capacity - held
        return held > 0 and (newcomer.amount > free or held + newcomer.amount > _SHARE * free)
