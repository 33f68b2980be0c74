"""The clock of trajectories, deadlines and engines; a simulation replaces it by virtual time.

Code that only reports durations to a person may use `time.monotonic` directly.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

_read: Callable[[], float] = time.monotonic
_UNIX_ZERO = time.time() - time.monotonic()


def now() -> float:
    """Return seconds on a monotonic clock with an arbitrary zero."""
    return _read()


def unix(at: float) -> float:
    """Return the Unix time of `at`, a value of `now`; processes of one machine agree on it."""
    return _UNIX_ZERO + at


@contextlib.contextmanager
def reading(source: Callable[[], float]) -> Iterator[None]:
    """Take the time from `source` in this process, until the context ends."""
    global _read
    previous, _read = _read, source
    try:
        yield
    finally:
        _read = previous
