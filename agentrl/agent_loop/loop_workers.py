"""The agent-loop workers as the driver sees them: each gets work in turn, and one that died gets none until it is back."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import AgentRLError, WorkerDiedError, WorkerError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_PAUSES_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
"""Before each question whether a worker that died is back; Ray starts it again."""

_START_TIMEOUT_S = 120.0


class LoopWorkers:
    """Started workers, and which of them live."""

    def __init__(self, workers: Sequence[WorkerHandle]) -> None:
        """Take workers that Ray starts again when they die."""
        self.all = list(workers)
        self._turns = itertools.count()
        self._dead: dict[WorkerHandle, asyncio.Task[None]] = {}
        """With what waits for them; those that never came back stay."""
        self._changed = asyncio.Event()

    @property
    def living(self) -> list[WorkerHandle]:
        """Those that may be given work."""
        return [worker for worker in self.all if worker not in self._dead]

    async def next(self) -> WorkerHandle:
        """Return the worker whose turn it is, as soon as one lives.

        Raises:
            WorkerError: none is left.
        """
        while True:
            for turn in itertools.islice(self._turns, len(self.all)):
                worker = self.all[turn % len(self.all)]
                if worker not in self._dead:
                    return worker
            if all(task.done() for task in self._dead.values()):
                raise WorkerError(
                    f"agent loop: all {len(self.all)} workers died, and none came back in {sum(_PAUSES_S):g} s. See `run.log` "
                    "and `ray_logs/` in the run's directory"
                )
            self._changed.clear()
            await self._changed.wait()

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
        worker = await self.next()
        try:
            return await call(worker, True)
        except WorkerDiedError:
            self.note_death(worker)
            raise

    def note_death(self, worker: WorkerHandle) -> None:
        """Give `worker` nothing until it answers again."""
        if worker not in self._dead:
            logger.warning("%r: dead; waiting until Ray has started it again", worker)
            self._dead[worker] = asyncio.create_task(self._await_return(worker))

    async def aclose(self) -> None:
        """Wait for nobody any more."""
        tasks = list(self._dead.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _await_return(self, worker: WorkerHandle) -> None:
        reason: Exception | None = None
        for pause_s in _PAUSES_S:
            await asyncio.sleep(pause_s)
            try:
                async with asyncio.timeout(_START_TIMEOUT_S):
                    await worker.start()
            except (
                TimeoutError,
                AgentRLError,
            ) as error:  # still dead, or its tools cannot be built while the judge is away
                reason = error
            else:
                del self._dead[worker]
                logger.info("%r: back", worker)
                break
        else:
            logger.error("%r: did not come back: %r", worker, reason)
        # Whoever waits looks only after this task has ended.
        asyncio.get_running_loop().call_soon(self._changed.set)
