"""Mathematical equivalence of two answers, in processes that may hang and are then killed.

`math-verify` parses and compares with sympy, which can take for ever or all memory on an answer that a policy makes up.
So it runs in a pool whose processes are killed at a time limit and replaced; the other processes go on meanwhile.
"""

import asyncio
import ctypes
import importlib
import logging
import multiprocessing
import resource
import signal
from concurrent.futures.process import BrokenProcessPool

from pebble import ProcessExpired, ProcessPool

from agentrl.errors import RolloutError
from agentrl.types import Deadline

logger = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_MEMORY_LIMIT_BYTES = 2 * 1024**3
_MAX_CRASHES = 2
"""A process that dies under an answer may have been killed from outside; one that dies twice died of the answer."""


class EquivalencePool:
    """Worker processes that compare answers.

    Example: `await pool.equivalent("1/2", "0.5", deadline=Deadline.after(5.0))` is True.
    """

    def __init__(self, *, num_processes: int, timeout_s: float) -> None:
        """Take the size of the pool, and the wall clock of one comparison, waiting for a process not counted."""
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._pool: ProcessPool | None = None
        self.num_given_up = 0
        """Comparisons that hung or crashed, and were decided as not equivalent."""

    async def start(self, *, deadline: Deadline) -> None:
        """Start the processes and see that they work.

        Raises:
            RolloutError: they do not start.
        """
        try:
            if not await self.equivalent("1/2", "0.5", deadline=deadline):
                raise RolloutError("answer check: its processes start, but hold that 1/2 and 0.5 differ")
        except BaseException:
            await self.aclose()
            raise

    async def equivalent(self, reference: str, answer: str, *, deadline: Deadline) -> bool:
        """Return whether `answer` is mathematically the same as `reference` (both LaTeX or plain expressions).

        A comparison that hangs, or that kills its process, is the answer's fault: False, and counted.

        Raises:
            RolloutError: the pool is broken, or too busy to decide by the deadline.
        """
        for _ in range(_MAX_CRASHES):
            try:
                return await self._compare(reference, answer, deadline)
            except ProcessExpired as error:
                logger.warning("answer check: a process died (%s) on %.100r", error, answer)
        self.num_given_up += 1
        return False

    async def aclose(self) -> None:
        """Kill the processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.stop()
            await asyncio.to_thread(pool.join)

    async def _compare(self, reference: str, answer: str, deadline: Deadline) -> bool:
        pool = await self._running_pool()
        future = pool.schedule(_equivalent, args=(reference, answer), timeout=self._timeout_s)
        decision = asyncio.wrap_future(future)
        try:
            # `asyncio.wait`, because the pool's own time limit ends in a `TimeoutError` too.
            await asyncio.wait({decision}, timeout=deadline.remaining_s())
            if not decision.done():
                raise RolloutError("answer check: all its processes were busy until the deadline")
            return decision.result()
        except TimeoutError:
            logger.warning("answer check: no decision in %g s on %.100r", self._timeout_s, answer)
            self.num_given_up += 1
            return False
        except BrokenProcessPool as error:
            raise RolloutError(f"answer check: its processes died: {error}") from error
        finally:
            decision.cancel()

    async def _running_pool(self) -> ProcessPool:
        if self._pool is not None and not self._pool.active:
            logger.warning("answer check: its processes are replaced")
            await self.aclose()
        if self._pool is None:
            # spawn: a fork of a process that runs an event loop and other threads can deadlock.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPool(self._num_processes, initializer=_prepare_process, context=context)
        return self._pool


def _prepare_process() -> None:
    """Make the process easy to kill, end it with its parent, bound its memory, and import before the clock runs."""
    # pebble's own handler needs the interpreter, which a hang in C code never gives back.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_LIMIT_BYTES, _MEMORY_LIMIT_BYTES))
    importlib.import_module("math_verify")
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def _equivalent(reference: str, answer: str) -> bool:
    # Not at the top: only the processes of the pool pay for sympy.
    from math_verify import parse, verify

    # Its own time limits are off: they are signals, which a hang in C code never sees, and the pool has one.
    parsed_reference = parse(f"\\boxed{{{reference}}}", parsing_timeout=0)
    parsed_answer = parse(f"\\boxed{{{answer}}}", parsing_timeout=0)
    return bool(verify(parsed_reference, parsed_answer, timeout_seconds=0))
