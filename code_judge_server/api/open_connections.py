"""The connections of a server: how many there are, and which of them has to go for a new one.

Connections, and the pipes and files of programs, come out of one limit on open descriptors: without a bound on the one nothing
may be left for the other, and a peer needs no token to connect.
"""

from collections import OrderedDict
from typing import Protocol

from code_judge_server.metrics import Metrics


class Abortable(Protocol):
    """One connection."""

    def abort(self) -> None:
        """Close it at once, whatever is not sent yet."""
        ...


class OpenConnections:
    """At most so many connections at once; one that is being answered never goes for another.

    Args:
        most: How many.
        metrics: Told of those that were closed to keep to it.
    """

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self._newcomers: OrderedDict[Abortable, None] = OrderedDict()
        """That have not sent the head of a request yet; the oldest first."""
        self._idle: OrderedDict[Abortable, None] = OrderedDict()
        """That have got all that they asked for; the one first that has asked nothing for the longest time."""
        self._busy: set[Abortable] = set()
        metrics.watch_connections(lambda: len(self))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._newcomers) + len(self._idle) + len(self._busy)

    def add(self, connection: Abortable) -> None:
        """Take a new one in, in place of another if need be; close it if none can go."""
        if len(self) >= self._most:
            self._metrics.connection_closed()
            if not self._newcomers and not self._idle:
                connection.abort()
                return
            self._next_to_go().popitem(last=False)[0].abort()
        self._newcomers[connection] = None

    def _next_to_go(self) -> "OrderedDict[Abortable, None]":
        """Newcomers first, unless they are few: the next one would then push out the last before its head can be there."""
        if not self._idle or len(self._newcomers) > self._most // 4:
            return self._newcomers
        return self._idle

    def begin(self, connection: Abortable) -> None:
        """Note that it has sent a head, and is to be answered."""
        self._newcomers.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.add(connection)

    def end(self, connection: Abortable) -> None:
        """Note that it has got all that it asked for."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def remove(self, connection: Abortable) -> None:
        """Forget one that is closed."""
        self._newcomers.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)
