"""A fair queue: the next run is the oldest one of the client that has used the least slot time."""

import heapq
import itertools
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass, field

from code_judge_server.queueing.queued_run import QueuedRun

_FIRST_GUESS_S = 0.02


_SMOOTHING = 0.05
"""Weight of the newest program in the mean of its kind."""


class RunTimes:
    """A running mean of the slot time of one run of a program, for each kind of program."""

    def __init__(self) -> None:
        self._mean_s: defaultdict[str, float] = defaultdict(lambda: _FIRST_GUESS_S)

    def learn(self, run: QueuedRun, run_time_s: float) -> None:
        """Learn the slot time of a run with a verdict."""
        mean_s = self._mean_s[run.kind]
        self._mean_s[run.kind] = mean_s + _SMOOTHING * (run_time_s / run.num_units - mean_s)

    def expected_s(self, run: QueuedRun) -> float:
        """Return the expected slot time of a run."""
        return self._mean_s[run.kind] * run.num_units

    def backlog_s(self, num_units: Counter[str]) -> float:
        """Return the expected slot time of so many runs of each kind together."""
        return sum(self._mean_s[kind] * number for kind, number in num_units.items())


_MOST_DEBTORS = 10_000
"""Most idle clients whose use is remembered; beyond it, those that used least are forgotten."""


@dataclass(slots=True, eq=False, kw_only=True)
class _Client:
    waiting: OrderedDict[QueuedRun, None] = field(default_factory=OrderedDict)
    """Waiting runs, oldest first; a cancelled run is removed at once."""
    waiting_units: Counter[str] = field(default_factory=Counter)
    num_running: int = 0
    used_s: float = 0.0
    """Slot time, in the virtual time of start-time fair queueing."""
    entry: int | None = None
    """Number of its current entry in the heap of waiting clients; other entries with its name are out of date."""

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.num_running


class FairQueue:
    """One first-in-first-out queue per client, served so that all clients get the same slot time.

    This is start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): 45,000 submissions of one client delay a single one
    of another only by the running programs. A run is charged with its expected slot time when it starts, and with the actual
    one when it ends. A client without runs is forgotten only when the others have had as much as it: otherwise a client that
    sends a few long runs, waits for them and sends the next would owe nothing each time.
    """

    def __init__(self, run_times: RunTimes) -> None:
        self._run_times = run_times
        self._clients: dict[str, _Client] = {}
        self._heap: list[tuple[float, int, str]] = []
        """Slot time used, number of the entry, and name of a client; entries may be out of date."""
        self._order = itertools.count()
        self._idle: list[tuple[float, str]] = []
        """Clients without runs that still owe slot time, as a heap; entries may be out of date."""
        self._virtual_time_s = 0.0
        self._waiting_units: Counter[str] = Counter()
        self._num_waiting = 0
        self._num_running = 0

    def __len__(self) -> int:
        return self._num_waiting

    def push(self, run: QueuedRun, *, first: bool = False) -> None:
        """Add a run; `first`: before all others of its client."""
        client = self._clients.get(run.client)
        if client is None:
            client = self._clients[run.client] = _Client()
        if not client.waiting:
            # Unused time is not saved up.
            client.used_s = max(client.used_s, self._virtual_time_s)
            client.entry = None  # its remaining entry, if any, is out of date
        client.waiting[run] = None
        client.waiting.move_to_end(run, last=not first)
        client.waiting_units[run.kind] += run.num_units
        self._waiting_units[run.kind] += run.num_units
        self._num_waiting += 1
        self._enter_heap(run.client, client)

    def pop(self) -> QueuedRun:
        """Remove and return the next run, and charge its client; there must be one."""
        name = self.next_client()
        used_s, _, _ = heapq.heappop(self._heap)
        client = self._clients[name]
        client.entry = None
        self._virtual_time_s = max(self._virtual_time_s, used_s)
        self._forget_caught_up()
        run, _ = client.waiting.popitem(last=False)
        self._left(run, client)
        run.charged_s = self._run_times.expected_s(run)
        client.used_s += run.charged_s
        client.num_running += 1
        self._num_running += 1
        if client.waiting:
            self._enter_heap(name, client)
        return run

    def next_client(self) -> str:
        """Return the client whose run `pop` would return."""
        while True:
            _, number, name = self._heap[0]
            client = self._clients.get(name)
            if client is not None and client.entry == number:
                if client.waiting:
                    return name
                client.entry = None
                self._forget_if_idle(name, client)
            if self._heap and self._heap[0][1] == number:
                heapq.heappop(self._heap)

    def remove(self, run: QueuedRun) -> None:
        """Remove a waiting run."""
        client = self._clients[run.client]
        del client.waiting[run]
        self._left(run, client)
        self._forget_if_idle(run.client, client)

    def ended(self, run: QueuedRun, run_time_s: float) -> None:
        """Correct the charge for a run that `pop` returned."""
        client = self._clients[run.client]
        client.used_s += run_time_s - run.charged_s
        client.num_running -= 1
        self._num_running -= 1
        if client.entry is not None:  # its turn has moved
            client.entry = None
            self._enter_heap(run.client, client)
        self._forget_if_idle(run.client, client)

    def work_ahead_s(self, name: str) -> float:
        """Return the slot time used before the run of a client starts that enters now.

        By then each other client has had as much as this one, earlier use included, or all that it wants.
        """
        own = self._clients.get(name)
        if own is None:
            return 0.0
        own_s = self._run_times.backlog_s(own.waiting_units)
        had_s = max(own.used_s, self._virtual_time_s) + own_s
        return own_s + sum(
            min(
                max(0.0, had_s - max(client.used_s, self._virtual_time_s)),
                self._run_times.backlog_s(client.waiting_units),
            )
            for client in self._clients.values()
            if client.waiting and client is not own
        )

    def all_work_s(self) -> float:
        """Return the slot time of all waiting runs, an upper bound for every client; constant time for any number of
        clients.
        """
        return self._run_times.backlog_s(self._waiting_units)

    def _enter_heap(self, name: str, client: _Client) -> None:
        if client.entry is None:
            client.entry = next(self._order)
            heapq.heappush(self._heap, (client.used_s, client.entry, name))

    def _left(self, run: QueuedRun, client: _Client) -> None:
        client.waiting_units[run.kind] -= run.num_units
        self._waiting_units[run.kind] -= run.num_units
        self._num_waiting -= 1

    def _forget_if_idle(self, name: str, client: _Client) -> None:
        # A client that is still in the heap is forgotten at its turn.
        if client.entry is not None or not client.is_idle:
            return
        if client.used_s <= self._virtual_time_s:
            del self._clients[name]
        else:
            heapq.heappush(self._idle, (client.used_s, name))
            if len(self._idle) > _MOST_DEBTORS:
                self._forget_first_idle()
        if not self._num_waiting and not self._num_running:  # no other client to compare with
            self._clients.clear()
            self._heap.clear()
            self._idle.clear()

    def _forget_caught_up(self) -> None:
        """Forget the idle clients that have had no more than the others."""
        while self._idle and self._idle[0][0] <= self._virtual_time_s:
            self._forget_first_idle()

    def _forget_first_idle(self) -> None:
        used_s, name = heapq.heappop(self._idle)
        client = self._clients.get(name)
        if client is not None and client.is_idle and client.entry is None and client.used_s == used_s:
            del self._clients[name]
