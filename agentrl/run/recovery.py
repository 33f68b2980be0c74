"""Restart of a run's models from the last checkpoint, after a process or a node died.

If a process dies while the run or a stage starts, nothing is lost yet, and the start is repeated.

A group of ranks cannot continue without one of them, since each holds a part of the weights. All progress after the
checkpoint is discarded, as when a killed run is resumed; agent loops and judge stay, and so do engines with processes of
their own. Engines in the models' processes are restarted with them. The models are also restarted if finished trajectories
were lost with a node.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

from agentrl.errors import ModelDiedError, RestoreRequiredError, WorkerDiedError
from agentrl.run.plan import Run

logger = logging.getLogger(__name__)
T = TypeVar("T")

_MAX_DEATHS = 3
"""Largest number of deaths after the same checkpoint; beyond it, restarts do not help."""

_MAX_STARTS = 3
"""Largest number of starts of the run, of a stage, or of the models after a death, if processes die during the start."""

_PAUSE_S = 8.0
"""Pause before the models are restarted again; Ray notices a killed node after some 15 seconds."""


@contextlib.asynccontextmanager
async def surviving_early_deaths(start: Callable[[], AbstractAsyncContextManager[Run]]) -> AsyncIterator[Run]:
    """Yield the run of `start`; if a process dies during the start, clean up and start again.

    Raises:
        WorkerDiedError, RestoreRequiredError: that happened three times.
    """
    async with AsyncExitStack() as stack:
        yield await _repeated(lambda: stack.enter_async_context(start()), what="the start of the run")


async def _repeated(start: Callable[[], Awaitable[T]], *, what: str, pause_s: float = 0.0) -> T:
    """Await `start`; if a process dies meanwhile, up to `_MAX_STARTS` times."""
    num_starts = 0
    while True:
        try:
            return await start()
        except (WorkerDiedError, RestoreRequiredError) as error:
            num_starts += 1
            if num_starts == _MAX_STARTS:
                raise
            logger.warning("%s, during %s; retrying (%d of %d)", error, what, num_starts, _MAX_STARTS - 1)
            await asyncio.sleep(pause_s)


async def surviving_model_deaths(run: Run, go_on: Callable[[], Awaitable[None]]) -> None:
    """Await `go_on`, which trains from the last checkpoint; after every death restart the models and await it again.

    Raises:
        ModelDiedError: a fourth death in a row without a new checkpoint; it says how it was noticed.
        InsufficientResourcesError: the nodes that are left had no room for the models for too long.
    """
    died_at, num_deaths = -1, 0
    while True:
        try:
            if num_deaths > 0:
                await _restart_models(run)
            return await go_on()
        except RestoreRequiredError as error:
            await run.checkpoints.aclose()  # the new processes know nothing of what the old ones were writing
            latest = run.plan.directory.checkpoints.latest()
            step = 0 if latest is None else latest.step
            died_at, num_deaths = step, num_deaths + 1 if step == died_at else 1
            if num_deaths > _MAX_DEATHS:
                raise ModelDiedError(
                    f"{error}. It was the {num_deaths}th time in a row after the checkpoint of step {step}, so the run ends; "
                    "`run.log` and `ray_logs/` in its directory may say why, and the same command resumes from that checkpoint"
                ) from error
            logger.warning("%s; restarting the models from step %d (%d of %d)", error, step, num_deaths, _MAX_DEATHS)


async def _restart_models(run: Run) -> None:
    """Restart the models; retry if one dies meanwhile, for example on a lost node that Ray has not noticed yet.

    Raises:
        RestoreRequiredError: that happened three times.
    """

    async def restart() -> None:
        await run.learner.restart()
        await run.engines.renew()

    run.progress.start_phase("restarting the models")
    await _repeated(restart, what="the restart of the models", pause_s=_PAUSE_S)
