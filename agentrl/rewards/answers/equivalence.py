"""Mathematical equivalence of two answers, in processes that are killed if they hang.

On some answers sympy takes for ever, or all memory. So each comparison runs in its own process, forked from one that has
imported sympy, with a limit of CPU time: first a short slice, then the whole limit in other slots, so that fast ones go on.

No library's pool: these use named semaphores, which stay in shared memory when a run is killed.
"""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys

from agentrl.errors import RolloutError
from agentrl.rewards.answers.math_process import Outcome
from agentrl.types import Deadline

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_SLICE_S = 0.2
"""CPU time of the first slice; nearly all comparisons take less."""
_MARGIN_S = 0.5
"""Time before the deadline at which a slow comparison is given up."""
_MAX_CRASHES = 2
"""Deaths after which the answer is to blame; the first may have another cause."""


class EquivalencePool:
    r"""Processes that compare answers: `await pool.equivalent(r"\sqrt{8}", r"2\sqrt{2}", deadline=...)` is True."""

    def __init__(self, *, num_processes: int, timeout_s: float) -> None:
        """Take the number of concurrent comparisons, at least 2, and the CPU time limit of one."""
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(num_processes)
        self._slow_slots = asyncio.Semaphore(num_processes - 1)
        self._server: _MathServer | None = None
        self._starting = asyncio.Lock()
        self._num_given_up = 0
        self._is_closed = False

    def take_num_given_up(self) -> int:
        """Return the number of comparisons since the last call that took too long or crashed, and count as different."""
        taken, self._num_given_up = self._num_given_up, 0
        return taken

    async def start(self, *, deadline: Deadline) -> None:
        """Start the forking process, and try it; a `RolloutError` says why it does not work."""
        try:
            if not await self.equivalent(r"\sqrt{8}", r"2\sqrt{2}", deadline=deadline):
                raise RolloutError("answer check: its process starts, but does not find equal roots equal")
        except BaseException:
            await self.aclose()
            raise

    async def equivalent(self, reference: str, answer: str, *, deadline: Deadline) -> bool:
        """Return whether `answer` equals `reference` mathematically (both LaTeX or plain expressions).

        A comparison that exceeds its limit, or kills its process, is counted and returns False.

        Raises:
            RolloutError: the comparison could not begin by the deadline, or no process can be started.
        """
        outcome = Outcome.DIED
        for _ in range(_MAX_CRASHES):
            outcome = await self._compare(reference, answer, deadline)
            if outcome is not Outcome.DIED:
                break
            logger.warning("answer check: a process died on %.100r", answer)
        if outcome in (Outcome.EQUAL, Outcome.DIFFERENT):
            return outcome is Outcome.EQUAL
        if outcome is Outcome.TIMEOUT:
            logger.warning("answer check: no decision in %g s on %.100r", self._timeout_s, answer)
        self._num_given_up += 1
        return False

    async def aclose(self) -> None:
        """Kill the processes; a running comparison raises a `RolloutError`."""
        self._is_closed = True
        if self._server is not None:
            await self._server.kill()
            self._server = None

    async def _compare(self, reference: str, answer: str, deadline: Deadline) -> Outcome:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._slots.acquire()
                outcome = await self._ask_in(self._slots, reference, answer, min(_SLICE_S, self._timeout_s))
        except TimeoutError:
            raise RolloutError("answer check: no decision by the deadline, too many answers at once") from None
        if outcome is not Outcome.TIMEOUT or self._timeout_s <= _SLICE_S:
            return outcome
        # After a first slice the answer is to blame, also where no slot comes free in time.
        left = Deadline.after(deadline.remaining_s() - _MARGIN_S)
        try:
            async with asyncio.timeout(left.capped(self._timeout_s).remaining_s()):
                await self._slow_slots.acquire()
            async with asyncio.timeout(left.remaining_s()):
                return await self._ask_in(self._slow_slots, reference, answer, self._timeout_s)
        except TimeoutError:
            return Outcome.TIMEOUT

    async def _ask_in(self, slots: asyncio.Semaphore, reference: str, answer: str, cpu_s: float) -> Outcome:
        """Compare in an acquired slot, which is free when the process has ended, not when the caller gives up."""
        asking = asyncio.ensure_future(self._ask(reference, answer, cpu_s))
        asking.add_done_callback(lambda _: slots.release())
        return await asyncio.shield(asking)

    async def _ask(self, reference: str, answer: str, cpu_s: float) -> Outcome:
        try:
            async with self._starting:
                if self._is_closed:
                    raise RolloutError("answer check: it is closed")
                if self._server is None or not self._server.alive:
                    if self._server is not None:
                        await self._server.kill()
                    self._server = await _MathServer.start()
                server = self._server
        except OSError as error:
            raise RolloutError("answer check: its process cannot be started") from error
        return await server.compare(reference, answer, cpu_s)


class _MathServer:
    """Client of the forking process, over its standard input and output."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._ids = itertools.count()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls) -> "_MathServer":
        """Start the process, and wait until it has imported everything.

        Raises:
            OSError: it does not start in time, or ends instead.
        """
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "agentrl.rewards.answers.math_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # `kill` reaches a child that was just forked, too
        )
        server = cls(process)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                if await server.compare("1", "1", 1.0) is Outcome.DIED:
                    raise ConnectionError("the process is gone")
        except BaseException:
            await server.kill()
            raise
        return server

    @property
    def alive(self) -> bool:
        """True while it can compare."""
        return not self._reading.done()

    async def compare(self, reference: str, answer: str, cpu_s: float) -> Outcome:
        """Return the outcome of a comparison limited to `cpu_s` seconds of CPU time."""
        assert self._process.stdin is not None, "a pipe"
        comparison = {"id": next(self._ids), "reference": reference, "answer": answer, "cpu_s": cpu_s}
        future = self._waiting[comparison["id"]] = asyncio.get_running_loop().create_future()
        self._process.stdin.write(json.dumps(comparison).encode() + b"\n")
        return await future

    async def kill(self) -> None:
        """Kill the process with its children."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self._process.stdout is not None, "a pipe"
        try:
            async for line in self._process.stdout:
                reply = json.loads(line)
                self._end(reply["id"], Outcome(reply["outcome"]))
        finally:
            for number in list(self._waiting):
                self._end(number, Outcome.DIED)

    def _end(self, number: int, outcome: Outcome) -> None:
        future = self._waiting.pop(number)
        if not future.done():
            future.set_result(outcome)
