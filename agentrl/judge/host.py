"""State of one judge: its health, and the estimated wait of a submission.

The estimate is the wait that the judge last reported, corrected by this client's submissions and verdicts since then, at the
observed pace. This file has no connection; `hosts` asks the judge.
"""

import ipaddress
import math
import random
import socket
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from code_judge_server.schemas import Health

_FIRST_BACK_OFF_S = 0.1
_MAX_BACK_OFF_S = 5.0
_FIRST_GUESS_S = 0.05
"""Time of one program on one slot before the first measurement."""
_FAR_S = 0.1
"""Extra wait on this machine that is accepted before another machine is asked."""
_SMOOTHING = 0.3
"""Weight of the newest measurement of the pace."""


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """State of one judge; all times are of `time.monotonic`."""

    url: str
    near: bool = False
    """True if it is on this machine."""
    is_down: bool = False
    """True from a failure to the next answered probe."""
    num_in_flight: int = 0
    """This client's open submissions."""
    num_failures: int = 0
    """Failures since its last verdict."""
    busy_until: float = -math.inf
    """Time before which it asked for no requests."""
    asked_at: float = -math.inf
    """Time of the last request for its wait."""
    _reported_at: float = -math.inf
    _num_slots: int = 1
    _reported_wait_s: float = 0.0
    _num_in_flight_then: int = 0
    _num_verdicts_since: int = 0
    _interval_s: float = 0.0
    """Seconds between two verdicts for this client, while it has open submissions."""

    def wait_s(self) -> float:
        """Return the estimated wait of a new submission for a slot."""
        change = self.num_in_flight - self._num_in_flight_then
        return max(0.0, self._reported_wait_s + change * self._interval_s)

    def rank(self) -> tuple[float, float]:
        """Return the sort key of a judge; the least gets the next batch."""
        return self.wait_s() + (0.0 if self.near else _FAR_S), self.num_in_flight / self._num_slots

    def note_report(self, health: Health) -> None:
        """Update the state from a report of the judge."""
        now = time.monotonic()
        if self._interval_s == 0.0:
            self._interval_s = _FIRST_GUESS_S / health.num_slots
        elif self._num_verdicts_since and self._num_in_flight_then and self.num_in_flight:
            measured_s = (now - self._reported_at) / self._num_verdicts_since
            self._interval_s += _SMOOTHING * (measured_s - self._interval_s)
        self._num_slots = health.num_slots
        self._reported_wait_s = health.estimated_wait_s
        self._num_in_flight_then, self._num_verdicts_since, self._reported_at = self.num_in_flight, 0, now

    def note_verdict(self) -> None:
        """Count one verdict, and reset the failures."""
        self.num_in_flight -= 1
        self._num_verdicts_since += 1
        self.num_failures = 0

    def note_failure(self) -> float:
        """Count one failure; return the jittered back-off in seconds, which grows with consecutive failures."""
        self.num_failures += 1
        longest_s = min(_FIRST_BACK_OFF_S * 2 ** min(self.num_failures - 1, 10), _MAX_BACK_OFF_S)
        return random.uniform(0.5, 1.0) * longest_s


def is_on_this_machine(url: str) -> bool:
    """Return whether the address in `url` is one of this machine's; False for names other than `localhost`."""
    name = urlsplit(url).hostname or ""
    try:
        address = ipaddress.ip_address("127.0.0.1" if name == "localhost" else name)
    except ValueError:
        return False
    with socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError:
            return False
    return True
