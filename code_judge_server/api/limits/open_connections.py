"""The open connections of a server: their number, and which one is closed for a new one.

Connections, pipes and files of programs share one limit on open descriptors. Without a bound, connections could use all of
them, and a peer needs no token to connect.
"""

from collections import OrderedDict
from typing import Protocol

from code_judge_server.metrics import Metrics


class Abortable(Protocol):
    """One connection."""

    def abort(self) -> None:
        """Close the connection at once; unsent data is dropped."""
        ...


class OpenConnections:
    """A set of at most `most` connections; one that is being answered is never closed for another."""

    def __init__(self, most: int, metrics: Metrics) -> None:
        self._most = most
        self._metrics = metrics
        self._newcomers: OrderedDict[Abortable, None] = OrderedDict()
        """Connections that have not sent the head of a request yet, oldest first."""
        self._idle: OrderedDict[Abortable, None] = OrderedDict()
        """Connections without an open request, the longest idle first."""
        self._busy: set[Abortable] = set()
        metrics.watch_connections(lambda: len(self))

    def __len__(self) -> int:
        """Return the number of connections."""
        return len(self._newcomers) + len(self._idle) + len(self._busy)

    def add(self, connection: Abortable) -> None:
        """Add a connection, and close another if the set is full; close the new one if none may be closed."""
        if len(self) >= self._most:
            self._metrics.count_closed_connection()
            if not self._newcomers and not self._idle:
                connection.abort()
                return
            self._next_to_go().popitem(last=False)[0].abort()
        self._newcomers[connection] = None

    def _next_to_go(self) -> "OrderedDict[Abortable, None]":
        """Return the newcomers, unless they are few: otherwise each new one would push out the last before its head arrives."""
        if not self._idle or len(self._newcomers) > self._most // 4:
            return self._newcomers
        return self._idle

    def begin(self, connection: Abortable) -> None:
        """Note that a connection has sent a head, and is being answered."""
        self._newcomers.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.add(connection)

    def end(self, connection: Abortable) -> None:
        """Note that a connection has received its reply."""
        if connection in self._busy:
            self._busy.remove(connection)
            self._idle[connection] = None

    def remove(self, connection: Abortable) -> None:
        """Forget a closed connection."""
        self._newcomers.pop(connection, None)
        self._idle.pop(connection, None)
        self._busy.discard(connection)
