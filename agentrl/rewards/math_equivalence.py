"""Mathematical equivalence of two answers, in processes that may hang and are then killed.

`math-verify` parses and compares with sympy, which can take for ever or all memory on an answer that a policy makes up.
So it runs in processes of its own that are killed at a time limit and replaced; the others go on meanwhile.

Not a pool of a library: those are built on named semaphores, which stay in shared memory when a run is killed.
"""

import asyncio
import json
import logging
import socket
import subprocess
import sys

from agentrl.errors import RolloutError
from agentrl.types import Deadline

logger = logging.getLogger(__name__)

_START_TIMEOUT_S = 60.0
_MAX_CRASHES = 2
"""A process that dies under an answer may have been killed from outside; one that dies twice died of the answer."""


class EquivalencePool:
    """Processes that compare answers.

    Example: `await pool.equivalent("1/2", "0.5", deadline=Deadline.after(5.0))` is True.
    """

    def __init__(self, *, num_processes: int, timeout_s: float) -> None:
        """Take the number of processes, and the wall clock of one comparison, waiting for a process not counted."""
        self._num_processes = num_processes
        self._timeout_s = timeout_s
        self._idle: asyncio.Queue[_MathProcess] = asyncio.Queue()
        self._processes: set[_MathProcess] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._num_given_up = 0

    def take_num_given_up(self) -> int:
        """Return the comparisons since the last call that hung or crashed, and were decided as not equivalent."""
        taken, self._num_given_up = self._num_given_up, 0
        return taken

    async def start(self, *, deadline: Deadline) -> None:
        """Start the processes and see that they work.

        Raises:
            RolloutError: they do not start.
        """
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                await asyncio.gather(*(self._add_process() for _ in range(self._num_processes)))
            if not await self.equivalent("1/2", "0.5", deadline=deadline):
                reason = "did not finish its first comparison" if self._num_given_up else "hold that 1/2 and 0.5 differ"
                raise RolloutError(f"answer check: its processes start, but {reason}")
        except TimeoutError as error:
            await self.aclose()
            raise RolloutError("answer check: its processes did not start in time") from error
        except OSError as error:
            await self.aclose()
            raise RolloutError("answer check: a process ended while it started") from error
        except BaseException:
            await self.aclose()
            raise

    async def equivalent(self, reference: str, answer: str, *, deadline: Deadline) -> bool:
        """Return whether `answer` is mathematically the same as `reference` (both LaTeX or plain expressions).

        A comparison that hangs, or that kills its process, is the answer's fault: False, and counted.

        Raises:
            RolloutError: the processes are too busy to decide by the deadline, or cannot be started.
        """
        for _ in range(_MAX_CRASHES):
            process = await self._take(deadline)
            try:
                return await self._compare(process, reference, answer, deadline)
            except ConnectionError:
                logger.warning("answer check: a process died on %.100r", answer)
            finally:
                self._give_back(process)
        self._num_given_up += 1
        return False

    async def aclose(self) -> None:
        """Kill the processes."""
        for task in self._replacing:
            task.cancel()
        for process in self._processes:
            process.kill()
        self._processes.clear()

    async def _compare(self, process: "_MathProcess", reference: str, answer: str, deadline: Deadline) -> bool:
        try:
            async with asyncio.timeout(min(self._timeout_s, deadline.remaining_s())):
                return await process.compare(reference, answer)
        except TimeoutError:
            if deadline.expired:
                raise RolloutError("answer check: no decision by the deadline") from None
            logger.warning("answer check: no decision in %g s on %.100r", self._timeout_s, answer)
            self._num_given_up += 1
            return False

    async def _take(self, deadline: Deadline) -> "_MathProcess":
        try:
            async with asyncio.timeout(deadline.remaining_s()):
                while not (process := await self._idle.get()).alive:
                    self._give_back(process)
                return process
        except TimeoutError:
            raise RolloutError("answer check: all its processes were busy until the deadline") from None

    def _give_back(self, process: "_MathProcess") -> None:
        if process.alive:
            self._idle.put_nowait(process)
        elif process in self._processes:
            process.kill()
            self._processes.remove(process)
            task = asyncio.create_task(self._replace())
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)

    async def _replace(self) -> None:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                await self._add_process()
        except (OSError, TimeoutError):
            logger.exception("answer check: a process could not be replaced; %d are left", len(self._processes))

    async def _add_process(self) -> None:
        process = _MathProcess()
        self._processes.add(process)
        try:
            await process.connect()
        except BaseException:
            process.kill()
            self._processes.discard(process)
            raise
        self._idle.put_nowait(process)


class _MathProcess:
    """One process, over a socket pair; it is of no more use once a comparison was broken off."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-P", "-m", "agentrl.rewards.math_process", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )
        self._comparing = False
        self._writer: asyncio.StreamWriter | None = None

    @property
    def alive(self) -> bool:
        """Whether it can compare: it runs, and owes no answer."""
        return self._process.poll() is None and not self._comparing

    async def connect(self) -> None:
        """Wait until everything is imported.

        Raises:
            ConnectionError: it ended instead.
        """
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket)
        await self._read_line()

    async def compare(self, reference: str, answer: str) -> bool:
        """Return the decision.

        Raises:
            ConnectionError: it died.
        """
        assert self._writer is not None, "connected"
        self._comparing = True
        self._writer.write(json.dumps([reference, answer]).encode() + b"\n")
        equal = json.loads(await self._read_line())
        self._comparing = False
        return bool(equal)

    def kill(self) -> None:
        """End it at once, whatever it computes."""
        self._process.kill()
        self._process.wait()
        if self._writer is not None:
            self._writer.close()
        else:
            self._socket.close()

    async def _read_line(self) -> bytes:
        line = await self._reader.readline()
        if not line.endswith(b"\n"):
            raise ConnectionError("the process is gone")
        return line
