"""Measures the lag of an event loop and names the call that blocks it: a blocked loop stalls every trajectory of its worker.

A timer on the loop measures its own delay. A thread watches the timer's last beat; when one is overdue, it reads the blocking
call from the loop thread's stack. Otherwise this costs two short wake-ups per beat.
"""

import asyncio
import faulthandler
import logging
import math
import re
import sysconfig
import tempfile
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO

from agentrl import clock
from agentrl.observability.logs import repeating

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.05
_LOOK_AFTER_S = 0.05
"""Delay of a beat after which the thread reads the stack."""
_WARN_ABOVE_S = 0.25
_MAX_SAMPLES = 100_000
_LIBRARIES = tuple(
    sysconfig.get_path(name).encode("ascii", "backslashreplace").decode() for name in ("stdlib", "purelib", "platlib")
)
"""Library paths, as `faulthandler` writes them."""
_LOOP_FILES = ("asyncio/base_events.py", "asyncio/events.py", "asyncio/runners.py", "uvloop/__init__.py")
_THREAD_CALLS = frozenset({"run", "_bootstrap_inner", "_bootstrap"})
"""Functions of `threading.py` that run a loop, at the bottom of the stack."""
_THREAD = re.compile(r"(?:Current thread|Thread) 0x([0-9a-f]+)")
_CALL = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """Lag of an event loop."""

    p99_s: float
    max_s: float


class LoopLag:
    """Watches the running loop until `stop` or the end of that loop."""

    def __init__(self, name: str) -> None:
        """Start; `name` is for the warning."""
        self._name = name
        self._samples: deque[float] = deque(maxlen=_MAX_SAMPLES)
        self._blocked_by: Call | None = None
        self._beat_at = clock.now()
        self._loop_thread = threading.get_ident()
        self._stopped = threading.Event()
        self._task = asyncio.create_task(self._beat())
        # Else a loop that ends without `stop` would be watched for ever.
        self._task.add_done_callback(lambda _: self._stopped.set())
        threading.Thread(target=self._watch, name=f"lag of {name}", daemon=True).start()

    def take(self) -> Lag:
        """Return the lag since the last call."""
        samples = sorted(self._samples)
        self._samples.clear()
        if not samples:
            return Lag(p99_s=0.0, max_s=0.0)
        return Lag(p99_s=samples[math.ceil(0.99 * len(samples)) - 1], max_s=samples[-1])

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
            blocked_by, self._blocked_by = self._blocked_by, None
            if lag_s > _WARN_ABOVE_S:
                self._warn(lag_s, blocked_by)

    def _warn(self, lag_s: float, blocked_by: "Call | None") -> None:
        cause = "event loop"
        if blocked_by is None:
            reason = "blocked by no single call; too much runs on it, or on this machine"
        else:
            cause += f": {blocked_by.file} {blocked_by.function}"  # without the line: a function may block at several
            where = f"{blocked_by.file}:{blocked_by.line} {blocked_by.function}"
            reason = f"blocked by {where}; run that in a thread (a tool's in a plain `def`)"
        logger.warning("%s: event loop late by %.2f s: %s", self._name, lag_s, reason, extra=repeating(cause))

    def _watch(self) -> None:
        held: Call | None = None
        with tempfile.TemporaryFile(buffering=0) as stacks:
            while not self._stopped.wait(_INTERVAL_S):
                seen = None
                if clock.now() - self._beat_at > _INTERVAL_S + _LOOK_AFTER_S:
                    seen = blocking_call(stack_of(self._loop_thread, stacks))
                # Twice in the same function: not one of many short calls.
                if seen is not None and held is not None and seen.is_in_function_of(held):
                    self._blocked_by = seen
                held = seen


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One frame of a thread's stack, as `faulthandler` writes it.

    Example: `Call(file="/home/me/my_tool.py", line=12, function="call")`.
    """

    file: str
    """First 500 characters of the path, with non-ASCII ones escaped."""
    line: int
    function: str

    def is_in_function_of(self, other: "Call") -> bool:
        """Return whether both are in a function of the same name and file."""
        return (self.file, self.function) == (other.file, other.function)


def stack_of(thread: int, scratch: BinaryIO) -> list[Call]:
    """Return the stack of a thread, innermost call first, at most a hundred calls; empty if the thread is gone.

    Python code cannot safely follow the frames of a running thread, since frames may be freed meanwhile; `faulthandler` reads
    them in one go.

    Args:
        thread: its `threading.get_ident()`.
        scratch: an unbuffered file, which is overwritten.
    """
    scratch.seek(0)
    scratch.truncate()
    faulthandler.dump_traceback(scratch, all_threads=True)
    scratch.seek(0)
    stacks = scratch.read().decode(errors="replace").split("\n\n")
    for stack in stacks:
        if (heading := _THREAD.match(stack)) is not None and int(heading[1], 16) == thread:
            return [Call(file=file, line=int(line), function=function) for file, line, function in _CALL.findall(stack)]
    return []


def blocking_call(stack: Sequence[Call]) -> Call | None:
    """Return the call that blocks the event loop of a thread, or None if the loop waits.

    It is the innermost call outside the libraries, which its author can change, else the call that the loop made.

    Args:
        stack: the stack, innermost call first.
    """
    outermost = None
    for call in stack:
        if call.file.endswith(_LOOP_FILES) or (call.file.endswith("threading.py") and call.function in _THREAD_CALLS):
            break
        if not call.file.startswith(_LIBRARIES):
            return call
        outermost = call
    return None if outermost is None or outermost.file.endswith("selectors.py") else outermost
