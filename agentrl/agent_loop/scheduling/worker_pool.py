"""The driver's view of the agent-loop workers: each gets work in turn, and a dead one gets none until it is back.

Ray reports a process that died, but not one that hangs, for example in a user's tool that never releases the interpreter.
So each worker is pinged regularly, and restarted if it does not answer.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl import clock
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.errors import AgentRLError, WorkerDiedError, WorkerError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Pauses before each attempt to reach a worker that Ray restarts; the last one repeats."""

_ASK_EVERY_S = 30.0
_SILENT_S = 60.0
"""Time without an answer after which a worker is treated as hung; no code of ours blocks its event loop for a second."""

_BUILD_WITHIN_S = sum(_PAUSES_S)
"""Limit for a restarted worker to build its tools while no other worker lives, for example because the judge is down."""


class LoopWorkers:
    """Started workers, and their state: living or dead."""

    def __init__(
        self,
        workers: Sequence[WorkerHandle],
        *,
        clean_up: Callable[[WorkerHandle], Awaitable[None]],
        max_wait_s: float,
        start_timeout_s: float,
    ) -> None:
        """Take the workers.

        Args:
            workers: processes that Ray restarts when they die.
            clean_up: ends the requests that a dead worker has left in the engines.
            max_wait_s: limit for a restart, when Ray finds no free resources.
            start_timeout_s: limit for `start` of a restarted worker (`WorkerConfig.start_timeout_s`).
        """
        self.all = list(workers)
        self._clean_up = clean_up
        self._max_wait_s = max_wait_s
        self._start_timeout_s = start_timeout_s
        self._turns = itertools.count()
        self._dead: dict[WorkerHandle, asyncio.Task[None]] = {}
        """Dead workers, each with the task that waits for its return; those that never return stay."""
        self._last_died_at = -math.inf
        self._changed = asyncio.Event()
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
            self._watch.add_done_callback(self._end_wait)
        while True:
            for turn in itertools.islice(self._turns, len(self.all)):
                worker = self.all[turn % len(self.all)]
                if worker not in self._dead:
                    return worker
            for task in self._dead.values():
                if task.done() and not task.cancelled() and (error := task.exception()):
                    raise WorkerError(f"agent loop: waiting for a worker failed (a bug): {error!r}") from error
            if all(task.done() for task in self._dead.values()):
                raise WorkerError(
                    f"agent loop: all {len(self.all)} workers died and none came back (limits: {self._max_wait_s:g} s to find "
                    f"resources, `cluster.max_wait_s`; {_BUILD_WITHIN_S:g} s to build tools). See `run.log` and `ray_logs/` in "
                    "the run's directory"
                )
            self._changed.clear()
            await self._changed.wait()

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
        """Return the result of `call` on a living worker; if that worker dies, on a second one.

        Args:
            call: gets the worker, and True if a worker has died in this call before.

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
            self._last_died_at = clock.now()
            self._dead[worker] = asyncio.create_task(self._await_return(worker))
            self._dead[worker].add_done_callback(self._end_wait)

    async def aclose(self) -> None:
        """Stop waiting for dead workers and pinging living ones."""
        tasks = [*self._dead.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_wait(self, task: asyncio.Task[None]) -> None:
        """Wake the waiting calls, however the task ended; after a bug of ours they would otherwise wait for ever."""
        if not task.cancelled() and (error := task.exception()):
            logger.error("agent loop: the watch over the workers failed", exc_info=error)
        self._changed.set()

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
                async with asyncio.timeout(self._start_timeout_s):
                    await worker.start()
            except (TimeoutError, AgentRLError) as error:
                away_s = clock.now() - died_at
                if self._is_too_long(error, died_at):
                    logger.error("%s: not back after %.0f s, given up: %r", worker, away_s, error)
                    break
                if pause_s == _PAUSES_S[-1]:
                    logger.warning("%s: not back after %.0f s: %r", worker, away_s, error)
            else:
                del self._dead[worker]
                logger.info("%s: back", worker)
                break

    def _is_too_long(self, error: Exception, died_at: float) -> bool:
        """Return whether to give up a worker whose restart failed with `error`."""
        now = clock.now()
        if isinstance(error, WorkerDiedError) or self.living:
            return now - died_at >= self._max_wait_s
        return now - max(died_at, self._last_died_at) >= _BUILD_WITHIN_S
