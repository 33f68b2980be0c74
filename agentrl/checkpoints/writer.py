"""Writing of checkpoints during a run: the driver's part, beside that of the actor's ranks."""

import asyncio
import logging
import shutil
import time
from collections.abc import Callable, Set
from pathlib import Path
from typing import Protocol

from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.full_disk import is_full
from agentrl.checkpoints.store import CheckpointStore
from agentrl.config.schema.run import CheckpointSection
from agentrl.data.pass_rates import PassRates
from agentrl.observability.logs import ONLY_IN_FILE

logger = logging.getLogger(__name__)

_POLL_S = 0.25
"""Pause between polls of whether the ranks are done; a poll waits for the running update."""

ROLLOUTS = "rollouts"
PASS_RATES = "pass_rates.json"


class SavesModels(Protocol):
    """Writer of a run's models (`Learner`)."""

    async def save(self, url: str) -> None:
        """Start writing the models into the folder `url`; return when training may continue."""
        ...

    async def saved(self) -> bool:
        """Return whether the write is done."""
        ...


class CheckpointKeeper:
    """Writer of checkpoints, one at a time; keeps as many as configured."""

    def __init__(
        self,
        store: CheckpointStore,
        config: CheckpointSection,
        models: SavesModels,
        *,
        note: Callable[[int], None],
        scratch: Path,
        pinned: Set[int] = frozenset(),
    ) -> None:
        """Take the parts.

        Args:
            store: store of the run.
            config: numbers of checkpoints to keep.
            models: writer of the models' part.
            note: called in a thread with the step of each complete checkpoint.
            scratch: local folder for files on their way to the store; every agent-loop worker must see it.
            pinned: steps whose checkpoints are always kept.
        """
        self._store = store
        self._config = config
        self._models = models
        self._note = note
        self._scratch = scratch
        self._pinned = pinned
        self._writing: asyncio.Task[None] | None = None
        self._metrics: dict[str, float] = {}

    async def save(self, state: RunState, rollouts: RolloutStream, pass_rates: PassRates) -> None:
        """Start a checkpoint of `state`; return when training may continue.

        Raises:
            CheckpointError: the one before it could not be written.
        """
        started = time.monotonic()
        await self.settle()
        url = await asyncio.to_thread(self._store.begin, state.step)
        folder = self._scratch / f"save_{state.step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        await self._models.save(url)
        await rollouts.save(folder)
        self._metrics["time/checkpoint_blocking_s"] = time.monotonic() - started
        self._writing = asyncio.create_task(self._complete(state, folder, pass_rates.encode(), started))

    async def settle(self) -> None:
        """Wait until the pending save is committed; raises as `save`, or `RestoreRequiredError` if its writers are gone."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    async def raise_failure(self) -> None:
        """Raise the failure of the pending save, if it has failed by now, without waiting."""
        if self._writing is not None and self._writing.done():
            await self.settle()

    def metrics(self) -> dict[str, float]:
        """Return the seconds that checkpoints since the last call blocked training, and took to write."""
        taken, self._metrics = self._metrics, {}
        return taken

    async def aclose(self) -> None:
        """Cancel the pending save, which stays partial; wait for one that is being committed."""
        writing, self._writing = self._writing, None
        if writing is not None:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    async def _complete(self, state: RunState, folder: Path, pass_rates: bytes, started: float) -> None:
        try:
            while True:
                if await self._models.saved():
                    break
                await asyncio.sleep(_POLL_S)
            await self._commit_in_thread(state, folder, pass_rates)
        except Exception as error:  # logged at once, raised at the next step
            full = "; there is no space left where it is written" if is_full(error) else ""
            logger.error("checkpoint of step %d: not written%s: %s: %s", state.step, full, type(error).__name__, error)
            raise
        self._metrics["time/checkpoint_s"] = time.monotonic() - started
        where = self._store.url_of(state.step)
        logger.info("checkpoint of step %d: written to %s", state.step, where, extra=ONLY_IN_FILE)

    async def _commit_in_thread(self, state: RunState, folder: Path, pass_rates: bytes) -> None:
        commit = asyncio.create_task(asyncio.to_thread(self._commit, state, folder, pass_rates))
        try:
            await asyncio.shield(commit)
        except asyncio.CancelledError:
            await asyncio.wait([commit])  # a thread cannot be stopped, and what it writes must not be cleared under it
            raise

    def _commit(self, state: RunState, folder: Path, pass_rates: bytes) -> None:
        self._store.put_folder(state.step, ROLLOUTS, folder)
        self._store.put(state.step, PASS_RATES, pass_rates)
        self._store.commit(state)
        self._note(state.step)
        shutil.rmtree(folder)
        self._store.prune(keep_last=self._config.keep_last, keep_best=self._config.keep_best, pinned=self._pinned)
