"""Measures how late an event loop is, and names what blocks it: one blocked loop stalls every trajectory of its worker.

A timer on the loop notes how late it comes. A thread beside the loop looks at the timer's last beat; when one is overdue, it
reads off the loop thread's stack which call holds it. While all is well that costs two short wake-ups per beat.
"""

import asyncio
import gc
import logging
import math
import sys
import sysconfig
import threading
from collections import deque
from dataclasses import dataclass
from types import CodeType, FrameType

from agentrl import clock

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.05
_LOOK_AFTER_S = 0.05
"""How late a beat is when the thread looks at the stack."""
_WARN_ABOVE_S = 0.25
_MAX_SAMPLES = 100_000
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
_LOOP_FILES = ("asyncio/base_events.py", "asyncio/events.py", "asyncio/runners.py", "uvloop/__init__.py")
_THREAD_CALLS = frozenset({"Thread.run", "Thread._bootstrap_inner", "Thread._bootstrap"})
"""With the files: what runs a loop, at the bottom of the stack."""

_looking = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How late an event loop was."""

    p99_s: float
    max_s: float
    blocked_by: str
    """`file:line function` of the call that blocked it longest; empty where there was none."""


class LoopLag:
    """Watches the loop that it is made on, until `stop`."""

    def __init__(self, name: str) -> None:
        """Start; `name` is for the warning."""
        self._name = name
        self._samples: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._worst = (0.0, "")
        self._warned_of: set[str] = set()
        self._blocked_by = ""
        self._beat_at = clock.now()
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._task = asyncio.create_task(self._beat())
        threading.Thread(target=self._watch, name=f"lag of {name}", daemon=True).start()

    def take(self) -> Lag:
        """Return the lag since the last call; what was warned of before is warned of again."""
        samples = sorted(self._samples)
        self._samples.clear()
        self._warned_of.clear()
        blocked_by, self._worst = self._worst[1], (0.0, "")
        if not samples:
            return Lag(p99_s=0.0, max_s=0.0, blocked_by=blocked_by)
        return Lag(p99_s=samples[math.ceil(0.99 * len(samples)) - 1], max_s=samples[-1], blocked_by=blocked_by)

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self._task.cancel()

    async def _beat(self) -> None:
        while True:
            self._beat_at = before = clock.now()
            await asyncio.sleep(_INTERVAL_S)
            lag_s = max(0.0, clock.now() - before - _INTERVAL_S)
            self._samples.append(lag_s)
            blocked_by, self._blocked_by = self._blocked_by, ""
            if lag_s > self._worst[0]:
                self._worst = (lag_s, blocked_by)
            if lag_s > _WARN_ABOVE_S and blocked_by not in self._warned_of:
                self._warned_of.add(blocked_by)
                logger.warning(
                    "%s: its event loop was late by %.2f s: %s",
                    self._name,
                    lag_s,
                    f"blocked by {blocked_by}; that belongs in a thread, a tool's in a plain `def`"
                    if blocked_by
                    else "by no single call; too much runs on it, or on the machine",
                )

    def _watch(self) -> None:
        held: CodeType | None = None
        while not self._stopped.wait(_INTERVAL_S):
            seen = None
            if clock.now() - self._beat_at > _INTERVAL_S + _LOOK_AFTER_S:
                seen = blocking_frame(_innermost_frame(self._loop_thread))
            if seen is not None and seen.f_code is held:  # and not one of many short calls
                self._blocked_by = f"{seen.f_code.co_filename}:{seen.f_lineno} {seen.f_code.co_qualname}"
            held = None if seen is None else seen.f_code


def _innermost_frame(thread: int) -> FrameType | None:
    """Return where a thread is, with the garbage collection off.

    Python's list of threads is locked meanwhile. A collection in the middle of it could run other threads, and whoever of them
    looks at that list too would wait for it with the interpreter's lock in hand: nothing would ever run again.
    """
    with _looking:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return sys._current_frames().get(thread)
        finally:
            if was_enabled:
                gc.enable()


def blocking_frame(innermost: FrameType | None) -> FrameType | None:
    """Return the call that holds the event loop of a thread.

    It is the innermost one outside the libraries, which is the code that can be changed; else the one that the loop itself
    made. None where the loop waits.
    """
    frame, outermost = innermost, None
    while frame is not None and not _is_loop(frame):
        if not frame.f_code.co_filename.startswith(_LIBRARIES):
            return frame
        outermost, frame = frame, frame.f_back
    return None if outermost is None or outermost.f_code.co_filename.endswith("selectors.py") else outermost


def _is_loop(frame: FrameType) -> bool:
    return frame.f_code.co_filename.endswith(_LOOP_FILES) or frame.f_code.co_qualname in _THREAD_CALLS
