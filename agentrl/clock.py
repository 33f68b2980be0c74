"""The clock by which trajectories, deadlines and engines measure time, so that a simulation can run on its own.

Whatever only tells a person how long something took may look at `time.monotonic` itself.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

_read: Callable[[], float] = time.monotonic


def now() -> float:
    """Return seconds on a clock that never goes back; its zero means nothing."""
    return _read()


@contextlib.contextmanager
def reading(source: Callable[[], float]) -> Iterator[None]:
    """Take the time from `source` in this process, until the context ends."""
    global _read
    previous, _read = _read, source
    try:
        yield
    finally:
        _read = previous
