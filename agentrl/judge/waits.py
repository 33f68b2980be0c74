"""What the calls of a piece of code waited for the judge, for those who run it and do not know whom it asks."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_heard_s: ContextVar[list[float] | None] = ContextVar("judge_waits_s", default=None)


@contextlib.contextmanager
def judge_waits() -> Iterator[list[float]]:
    """Give a list to which every call that is answered adds its seconds in the queue; tasks begun inside belong to it."""
    waits_s: list[float] = []
    token = _heard_s.set(waits_s)
    try:
        yield waits_s
    finally:
        _heard_s.reset(token)


def note_judge_wait(wait_s: float) -> None:
    """Tell whoever listens of one call."""
    if (waits_s := _heard_s.get()) is not None:
        waits_s.append(wait_s)
