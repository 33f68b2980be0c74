"""Mathematical equivalence of two answers, in processes that are killed if they hang.

On some answers sympy takes for ever, or all memory. So each comparison runs in its own process, forked from one that has
imported sympy, with a limit of CPU time. A comparison first gets a short slice. One that needs more restarts in a second lane
with its whole limit, which never takes the last slot, so that fast comparisons do not wait.

No library's pool: these use named semaphores, which stay in shared memory when a run is killed.
"""

import asyncio
import itertools
import json
import logging
import socket
import subprocess
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
    r"""Processes that compare answers.

    Example: `await pool.equivalent(r"\sqrt{8}", r"2\sqrt{2}", deadline=Deadline.after(5.0))` is True.
    """

    def __init__(self, *, num_processes: int, timeout_s: float) -> None:
        """Take the number of concurrent comparisons, at least 2, and the CPU time limit of one."""
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(num_processes)
        self._slow_slots = asyncio.Semaphore(num_processes - 1)
        self._asking: set[asyncio.Task[Outcome]] = set()
        self._server: _MathServer | None = None
        self._starting = asyncio.Lock()
        self._num_given_up = 0

    def take_num_given_up(self) -> int:
        """Return the number of comparisons since the last call that took too long or crashed, and count as different."""
        taken, self._num_given_up = self._num_given_up, 0
        return taken

    async def start(self, *, deadline: Deadline) -> None:
        """Start the forking process, and try it.

        Raises:
            RolloutError: it does not start, or does not compare.
        """
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._running_server()
            if not await self.equivalent(r"\sqrt{8}", r"2\sqrt{2}", deadline=deadline):
                reason = (
                    "did not finish its first comparison" if self._num_given_up else "holds that equal roots differ"
                )
                raise RolloutError(f"answer check: its process starts, but {reason}")
        except TimeoutError as error:
            await self.aclose()
            raise RolloutError("answer check: its process did not start in time") from error
        except OSError as error:
            await self.aclose()
            raise RolloutError("answer check: its process ended while it started") from error
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
            outcome = await self._first_slice(reference, answer, deadline)
            if outcome is Outcome.TIMEOUT and self._timeout_s > _SLICE_S:
                outcome = await self._whole_time(reference, answer, deadline)
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
        """Kill the processes."""
        for task in self._asking:
            task.cancel()
        if self._server is not None:
            self._server.kill()
            self._server = None

    async def _first_slice(self, reference: str, answer: str, deadline: Deadline) -> Outcome:
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await self._slots.acquire()
                return await self._run(reference, answer, min(_SLICE_S, self._timeout_s), [self._slots])
        except TimeoutError:
            raise RolloutError("answer check: no decision by the deadline, too many answers at once") from None
        except OSError as error:
            raise RolloutError("answer check: its process cannot be started") from error

    async def _whole_time(self, reference: str, answer: str, deadline: Deadline) -> Outcome:
        """Compare again with the whole limit; after a first slice, no slot in time counts as a timeout."""
        wait_s = min(self._timeout_s, max(0.0, deadline.remaining_s() - _MARGIN_S))
        try:
            async with asyncio.timeout(wait_s):
                await self._slow_slots.acquire()
                try:
                    await self._slots.acquire()
                except BaseException:
                    self._slow_slots.release()
                    raise
            async with asyncio.timeout(max(0.0, deadline.remaining_s() - _MARGIN_S)):
                return await self._run(reference, answer, self._timeout_s, [self._slots, self._slow_slots])
        except TimeoutError:
            return Outcome.TIMEOUT
        except OSError as error:
            raise RolloutError("answer check: its process cannot be started") from error

    async def _run(self, reference: str, answer: str, cpu_s: float, slots: list[asyncio.Semaphore]) -> Outcome:
        """Compare in acquired slots, and release them when the comparison ends, even if the caller is cancelled."""
        task = asyncio.create_task(self._ask(reference, answer, cpu_s))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
        task.add_done_callback(lambda _: [slot.release() for slot in slots])
        return await asyncio.shield(task)

    async def _ask(self, reference: str, answer: str, cpu_s: float) -> Outcome:
        server = await self._running_server()
        try:
            return await server.compare(reference, answer, cpu_s)
        except ConnectionError:
            return Outcome.DIED

    async def _running_server(self) -> "_MathServer":
        async with self._starting:
            if self._server is None or not self._server.alive:
                if self._server is not None:
                    self._server.kill()
                server = _MathServer()
                try:
                    async with asyncio.timeout(_START_TIMEOUT_S):
                        await server.connect()
                except BaseException:
                    server.kill()
                    raise
                self._server = server
            return self._server


class _MathServer:
    """Client of the forking process, over a socket pair."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "agentrl.rewards.answers.math_process", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._writer: asyncio.StreamWriter | None = None
        self._reading: asyncio.Task[None] | None = None
        self._waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._ids = itertools.count()

    @property
    def alive(self) -> bool:
        """True while it can compare."""
        return self._process.poll() is None and self._reading is not None and not self._reading.done()

    async def connect(self) -> None:
        """Wait until the process has imported everything.

        Raises:
            ConnectionError: it ended instead.
        """
        reader, self._writer = await asyncio.open_connection(sock=self._socket)
        if await reader.readline() != b"ready\n":
            raise ConnectionError("the process is gone")
        self._reading = asyncio.create_task(self._read(reader))

    async def compare(self, reference: str, answer: str, cpu_s: float) -> Outcome:
        """Return the outcome of a comparison limited to `cpu_s` seconds of CPU time.

        Raises:
            ConnectionError: the process died.
        """
        assert self._writer is not None, "connected"
        if not self.alive:
            raise ConnectionError("the process is gone")
        comparison = {"id": next(self._ids), "reference": reference, "answer": answer, "cpu_s": cpu_s}
        future = self._waiting[comparison["id"]] = asyncio.get_running_loop().create_future()
        self._writer.write(json.dumps(comparison).encode() + b"\n")
        return await future

    def kill(self) -> None:
        """Kill the process and its children."""
        self._process.kill()
        self._process.wait()
        if self._reading is not None:
            self._reading.cancel()
        self._fail_waiting()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                reply = json.loads(line)
                self._waiting.pop(reply["id"]).set_result(Outcome(reply["outcome"]))
        except ConnectionError:
            pass
        finally:
            self._fail_waiting()

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the process is gone"))
