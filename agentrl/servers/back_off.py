"""State of one server as a client sees it, and the back-off after its failures."""

import math
import random
from dataclasses import dataclass
from typing import Any

_FIRST_BACK_OFF_S = 0.1
_MAX_BACK_OFF_S = 5.0


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """State of one server; times are of `time.monotonic`."""

    url: str
    is_down: bool = False
    """True from a failure to the next passed probe."""
    busy_until: float = -math.inf
    """Time before which it asked for no requests."""
    num_in_flight: int = 0
    """This client's open requests; updated by the subclass of the pool."""
    num_failures: int = 0
    """Failures since its last answer."""

    def load(self) -> Any:
        """Return the sort key of a host; the least gets the next request."""
        return self.num_in_flight

    def note_failure(self) -> float:
        """Count one failure; return the jittered back-off in seconds, which grows with consecutive failures."""
        self.num_failures += 1
        longest_s = min(_FIRST_BACK_OFF_S * 2 ** min(self.num_failures - 1, 10), _MAX_BACK_OFF_S)
        return random.uniform(0.5, 1.0) * longest_s
