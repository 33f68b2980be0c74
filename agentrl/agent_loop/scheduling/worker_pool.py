"""The driver's view of the agent-loop workers: each gets work in turn, and a dead one gets none until it is back.

Ray reports a process that died, but not one that hangs, for example in a user's tool that never releases the interpreter.
So each worker is pinged regularly, and restarted if it does not answer.
"""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl import clock
from agentrl.cluster.ray.handles import WorkerHandle, started
from agentrl.errors import AgentRLError, WorkerDiedError, WorkerError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Pauses before each attempt to reach a worker that Ray restarts; the last one repeats."""

_ASK_EVERY_S = 30.0
_SILENT_S = 60.0
"""Time without an answer after which a worker is treated as hung; no code of ours blocks its event loop for a second."""


class LoopWorkers:
    """Started workers, and their state: living or dead."""

    def __init__(
        self,
        workers: Sequence[WorkerHandle],
        *,
        clean_up: Callable[[WorkerHandle], Awaitable[None]],
        max_wait_s: float,
    ) -> None:
        """Take workers that Ray restarts when they die.

        `clean_up` ends the requests that a dead worker has left in the engines. `max_wait_s` limits the restart of a worker.
        """
        self.all = list(workers)
        self._clean_up = clean_up
        self._max_wait_s = max_wait_s
        self._turns = itertools.count()
        self._dead: dict[WorkerHandle, asyncio.Task[None]] = {}
        """Dead workers, each with the task that waits for its return; those that never return stay."""
        self._watch: asyncio.Task[None] | None = None

    @property
    def living(self) -> list[WorkerHandle]:
        """Workers that may get work."""
        return [worker for worker in self.all if worker not in self._dead]

    async def next(self) -> WorkerHandle:
        """Return the next worker in turn; wait until at least one lives.

        Raises:
            WorkerError: none is left.
        """
        if self._watch is None:
            self._watch = asyncio.create_task(self._end_silent())
        while True:
            for turn in itertools.islice(self._turns, len(self.all)):
                worker = self.all[turn % len(self.all)]
                if worker not in self._dead:
                    return worker
            returning = [task for task in self._dead.values() if not task.done()]
            if not returning:
                raise WorkerError(
                    f"agent loop: all {len(self.all)} workers died and none came back in {self._max_wait_s:g} s "
                    "(`cluster.max_wait_s`). See `run.log` and `ray_logs/` in the run's directory"
                )
            ended, _ = await asyncio.wait(returning, return_when=asyncio.FIRST_COMPLETED)
            for task in ended:
                if not task.cancelled():
                    task.result()  # raises if it failed by a bug of ours

    async def next_answering(self) -> WorkerHandle:
        """Return the next worker that answers a ping; when a node is lost, all of its workers die at once.

        Raises:
            WorkerError: none is left.
        """
        while True:
            worker = await self.next()
            await self._require_answer(worker)
            if worker not in self._dead:
                return worker

    async def ask(self, call: Callable[[WorkerHandle, bool], Awaitable[T]]) -> T:
        """Return the result of `call` on a living worker; if that worker dies, on a second one, with True as second argument.

        Raises:
            WorkerDiedError: the second worker died too.
            WorkerError: none is left.
        """
        worker = await self.next()
        try:
            return await call(worker, False)
        except WorkerDiedError:
            self.note_death(worker)
        worker = await self.next_answering()
        try:
            return await call(worker, True)
        except WorkerDiedError:
            self.note_death(worker)
            raise

    def note_death(self, worker: WorkerHandle) -> None:
        """Clean up after `worker`, and give it no work until it answers again."""
        if worker not in self._dead:
            logger.warning("%s: died, waiting for Ray to restart it", worker)
            self._dead[worker] = asyncio.create_task(self._await_return(worker))

    async def aclose(self) -> None:
        """Stop waiting for dead workers and pinging living ones."""
        tasks = [*self._dead.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_silent(self) -> None:
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            await asyncio.gather(*map(self._require_answer, self.living))

    async def _require_answer(self, worker: WorkerHandle) -> None:
        try:
            async with asyncio.timeout(_SILENT_S):
                await worker.ping()
        except TimeoutError:
            logger.error("%s: no answer for %g s, restarting", worker, _SILENT_S)
            worker.end_for_restart()
            self.note_death(worker)
        except AgentRLError:
            self.note_death(worker)

    async def _await_return(self, worker: WorkerHandle) -> None:
        await self._clean_up(worker)  # first: otherwise the restarted worker's new requests would be removed too
        died_at = clock.now()
        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            await asyncio.sleep(pause_s)
            try:
                await started(worker)
            except AgentRLError as error:
                away_s = clock.now() - died_at
                if away_s >= self._max_wait_s:
                    logger.error("%s: not back after %.0f s, given up: %r", worker, away_s, error)
                    break
                if pause_s == _PAUSES_S[-1]:
                    logger.warning("%s: not back after %.0f s: %r", worker, away_s, error)
            else:
                del self._dead[worker]
                logger.info("%s: back", worker)
                break
