"""What a run does when what it needs is gone with a process or a node: it starts its models again, from the last checkpoint.

Where a process dies while the run or a stage of it starts, nothing is lost yet, and all of it starts again.

A group of ranks cannot go on without one of them, since each holds a part of the weights that nobody else has. What came after
the checkpoint is forgotten, as when a killed run is resumed; agent loops and judge stay, and so do engines with processes of
their own. Engines that live with the models come back with them. The same is done where finished trajectories are gone with the
node that held them.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from agentrl.errors import ModelDiedError, RestoreRequiredError, WorkerDiedError
from agentrl.runners.run import Run

logger = logging.getLogger(__name__)


_MAX_DEATHS = 3
"""From the same checkpoint on; what dies so often has a reason that starting again does not remove."""

_MAX_STARTS = 3
"""Of the run, of a stage, or of the models after a death, where processes die before anything is done."""

_PAUSE_S = 8.0
"""Before models are started once more: of a node that was killed Ray knows after some 15 seconds."""


@contextlib.asynccontextmanager
async def surviving_early_deaths(start: Callable[[], AbstractAsyncContextManager[Run]]) -> AsyncIterator[Run]:
    """Give what `start` gives; where a process dies while it starts, end what there is of it, and start again.

    Raises:
        WorkerDiedError, RestoreRequiredError: that happened three times.
    """
    async with AsyncExitStack() as stack:
        yield await _started(stack, start)


async def _started(stack: AsyncExitStack, start: Callable[[], AbstractAsyncContextManager[Run]]) -> Run:
    num_deaths = 0
    while True:
        try:
            return await stack.enter_async_context(start())
        except (WorkerDiedError, RestoreRequiredError) as error:
            num_deaths += 1
            if num_deaths == _MAX_STARTS:
                raise
            logger.warning(
                "%s, while the run started; starting it again (%d of %d)", error, num_deaths, _MAX_STARTS - 1
            )


async def surviving_model_deaths(run: Run, go_on: Callable[[], Awaitable[None]]) -> None:
    """Await `go_on`, which trains from the last checkpoint; after every death again, once the models are started again.

    Raises:
        ModelDiedError: a fourth death in a row without a new checkpoint; it says how it was noticed.
        InsufficientResourcesError: the nodes that are left had no room for the models for too long.
    """
    died_at, num_deaths = -1, 0
    while True:
        try:
            if num_deaths > 0:
                await _start_again(run)
            return await go_on()
        except RestoreRequiredError as error:
            await run.checkpoints.aclose()  # the new processes know nothing of what the old ones were writing
            latest = run.plan.directory.checkpoints.latest()
            step = 0 if latest is None else latest.step
            died_at, num_deaths = step, num_deaths + 1 if step == died_at else 1
            if num_deaths > _MAX_DEATHS:
                raise ModelDiedError(
                    f"{error}. It was the {num_deaths}th time in a row after the checkpoint of step {step}, so the run ends; "
                    "`run.log` and `ray_logs/` in its directory may say why, and the same command goes on from that checkpoint"
                ) from error
            logger.warning(
                "%s; starting the models again from step %d (%d of %d)", error, step, num_deaths, _MAX_DEATHS
            )


async def _start_again(run: Run) -> None:
    """Start the models again; where one dies meanwhile, as on a node that is gone without Ray's knowledge, once more.

    Raises:
        RestoreRequiredError: that happened three times.
    """
    run.progress.start_phase("starting the models again")
    for num_starts in itertools.count(1):
        try:
            await run.learner.restart()
            await run.engines.renew()
            return
        except RestoreRequiredError as error:
            if num_starts == _MAX_STARTS:
                raise
            logger.warning(
                "%s, while the models were started again; once more (%d of %d)", error, num_starts, _MAX_STARTS - 1
            )
            await asyncio.sleep(_PAUSE_S)
