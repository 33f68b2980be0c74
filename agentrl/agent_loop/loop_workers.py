"""The agent-loop workers as the driver sees them: each gets work in turn, and one that died gets none until it is back.

Of a process that died Ray tells everybody who waits for it. Of one that hangs, as in a tool of the user's that never gives the
interpreter back, nobody tells: so each is asked now and then, and ended where it says nothing.
"""

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl import clock
from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import AgentRLError, WorkerDiedError, WorkerError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Before each question whether a worker that died is back; Ray starts it again where it finds room. The last one repeats."""

_ASK_EVERY_S = 30.0
_SILENT_S = 60.0
"""A worker that says nothing for so long hangs: nothing of ours keeps its event loop for a second."""

_BUILD_WITHIN_S = sum(_PAUSES_S)
"""Where no worker lives, one that is back and still cannot build its tools, say because the judge is away, never will."""


class LoopWorkers:
    """Started workers, and which of them live."""

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
            workers: processes that Ray starts again when they die.
            clean_up: ends what a dead one has left elsewhere.
            max_wait_s: how long Ray may find no room for one of them.
            start_timeout_s: how long one that is back may take to start (`WorkerConfig.start_timeout_s`).
        """
        self.all = list(workers)
        self._clean_up = clean_up
        self._max_wait_s = max_wait_s
        self._start_timeout_s = start_timeout_s
        self._turns = itertools.count()
        self._dead: dict[WorkerHandle, asyncio.Task[None]] = {}
        """With what waits for them; those that never came back stay."""
        self._last_died_at = -math.inf
        self._changed = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    @property
    def living(self) -> list[WorkerHandle]:
        """Those that may be given work."""
        return [worker for worker in self.all if worker not in self._dead]

    async def next(self) -> WorkerHandle:
        """Return the worker whose turn it is, as soon as one lives.

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
                    raise WorkerError(f"agent loop: waiting for a worker failed, which is a bug: {error!r}") from error
            if all(task.done() for task in self._dead.values()):
                raise WorkerError(
                    f"agent loop: all {len(self.all)} workers died, and none came back: in {self._max_wait_s:g} s "
                    f"(`cluster.max_wait_s`) where there is no room, in {_BUILD_WITHIN_S:g} s where tools cannot be built. "
                    "See `run.log` and `ray_logs/` in the run's directory"
                )
            self._changed.clear()
            await self._changed.wait()

    async def next_answering(self) -> WorkerHandle:
        """Return the same, but one that is asked whether it lives: with a node all of its workers are gone at once.

        Raises:
            WorkerError: none is left.
        """
        while True:
            worker = await self.next()
            await self._require_answer(worker)
            if worker not in self._dead:
                return worker

    async def ask(self, call: Callable[[WorkerHandle, bool], Awaitable[T]]) -> T:
        """Return what `call` gives for a living worker; if that one dies, for another one.

        Args:
            call: what to ask; told as well whether a worker has died over it before.

        Raises:
            WorkerDiedError: the second one died as well.
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
        """Have cleaned up after `worker`, and give it nothing until it answers again."""
        if worker not in self._dead:
            logger.warning("%s: dead; waiting until Ray has started it again", worker)
            self._last_died_at = clock.now()
            self._dead[worker] = asyncio.create_task(self._await_return(worker))
            self._dead[worker].add_done_callback(self._end_wait)

    async def aclose(self) -> None:
        """Wait for nobody any more."""
        tasks = [*self._dead.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end_wait(self, task: asyncio.Task[None]) -> None:
        """Wake who waits, however the task has ended; a mistake of ours would otherwise keep them for ever."""
        if not task.cancelled() and (error := task.exception()):
            logger.error("agent loop: looking after the workers failed", exc_info=error)
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
            logger.error("%s: says nothing for %g s; it is ended, and Ray starts it again", worker, _SILENT_S)
            worker.end_for_restart()
            self.note_death(worker)
        except AgentRLError:
            self.note_death(worker)

    async def _await_return(self, worker: WorkerHandle) -> None:
        await self._clean_up(worker)  # first: what it asks for when it is back must not be taken for what it left
        died_at = clock.now()
        for pause_s in itertools.chain(_PAUSES_S, itertools.repeat(_PAUSES_S[-1])):
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(self._start_timeout_s):
                    await worker.start()
            except (TimeoutError, AgentRLError) as error:
                away_s = clock.now() - died_at
                if self._is_too_long(error, died_at):
                    logger.error("%s: did not come back in %.0f s: %r", worker, away_s, error)
                    break
                if pause_s == _PAUSES_S[-1]:
                    logger.warning("%s: not back after %.0f s: %r", worker, away_s, error)
            else:
                del self._dead[worker]
                logger.info("%s: back", worker)
                break

    def _is_too_long(self, error: Exception, died_at: float) -> bool:
        """Return whether a worker that failed to come back with `error` is given up."""
        now = clock.now()
        if isinstance(error, WorkerDiedError) or self.living:
            return now - died_at >= self._max_wait_s
        return now - max(died_at, self._last_died_at) >= _BUILD_WITHIN_S
