"""Judge waits of the calls inside a context, for callers that do not know the judge client."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_heard_s: ContextVar[list[float] | None] = ContextVar("judge_waits_s", default=None)


@contextlib.contextmanager
def judge_waits() -> Iterator[list[float]]:
    """Yield a list to which every answered call adds its seconds in the queue, also calls of tasks begun inside."""
    waits_s: list[float] = []
    token = _heard_s.set(waits_s)
    try:
        yield waits_s
    finally:
        _heard_s.reset(token)


def note_judge_wait(wait_s: float) -> None:
    """Add the wait of one call to the current context's list."""
    if (waits_s := _heard_s.get()) is not None:
        waits_s.append(wait_s)
