"""The engines of a run: a dead engine is closed at once, restarted in a new process, and opened with the current weights.

Nothing is polled. A failed call or weight push reports the engine (`suspect`); the fleet asks it once more, and replaces its
process if it is dead. Calls on the old handle raise `WorkerDiedError`, so no work reaches an engine without its weights.

Engines inside the models' processes are not restarted one by one: their death is the models' death. It fails everything that
waits for an engine, and `renew` takes the engines of the new model processes.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import overload

from agentrl import clock
from agentrl.cluster.engine_state import Dispatcher, EngineState
from agentrl.cluster.ray.handles import WorkerHandle, all_of, started
from agentrl.errors import (
    AgentRLError,
    EngineDeadError,
    EngineError,
    InsufficientResourcesError,
    ModelDiedError,
    WorkerDiedError,
)
from agentrl.weight_sync.base import WeightSource

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 30.0
"""Time after which an engine hangs: it answers between two steps."""
_LOAD_TIMEOUT_S = 300.0
_MAX_DEATHS = 5
"""Consecutive deaths after which an engine is given up."""
_FORGIVEN_AFTER_S = 600.0
"""Working time after which earlier deaths no longer count."""
_FIRST_BACK_OFF_S = 1.0
"""Pause before the second restart; doubled by every further death."""

Publish = Callable[[Sequence[str]], Awaitable[WeightSource]]
"""Makes the weights readable by the named engines, or begins to send them."""


class EngineFleet(Sequence[WorkerHandle]):
    """The handles of all engines, by number; a restart changes the handle."""

    def __init__(
        self,
        launch: Callable[[int], WorkerHandle],
        *,
        num_engines: int,
        lives_with_models: bool = False,
        until_placed: Callable[[WorkerHandle], Awaitable[None]] | None = None,
        nearest: Callable[[WeightSource, WorkerHandle], Awaitable[WeightSource]] | None = None,
        require_models: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Start the processes.

        Args:
            launch: starts the process of engine number n; called again after a death.
            num_engines: number of engines.
            lives_with_models: the engines' processes hold parts of models too, and are replaced with them (`renew`).
            until_placed: waits until a process is placed, or raises `InsufficientResourcesError`; absent: no waiting.
            nearest: maps published weights to the copy nearest to an engine; absent: the engine reads the original.
            require_models: raises `ModelDiedError` if a process of the models is gone.
        """
        self._launch = launch
        self._lives_with_models = lives_with_models
        self._until_placed = until_placed
        self._nearest = nearest
        self._require_models = require_models
        self._engines = [EngineState(index, launch(index)) for index in range(num_engines)]
        self._dispatcher: Dispatcher | None = None
        self._weights: tuple[WeightSource, int] | None = None
        self._publish: Publish | None = None
        self._weights_change = asyncio.Lock()
        self._awake = asyncio.Event()
        """Cleared between `sleep` and the next `push`, while others use the memory."""
        self._awake.set()
        self._lost: AgentRLError | None = None
        self._num_deaths = 0

    def __len__(self) -> int:
        return len(self._engines)

    @overload
    def __getitem__(self, index: int) -> WorkerHandle: ...

    @overload
    def __getitem__(self, index: slice) -> list[WorkerHandle]: ...

    def __getitem__(self, index: int | slice) -> WorkerHandle | list[WorkerHandle]:
        if isinstance(index, slice):
            return [engine.handle for engine in self._engines[index]]
        return self._engines[index].handle

    async def start(self) -> None:
        """Load the model in every engine; the first failure ends the run."""
        await all_of(self._start_first(engine) for engine in self._engines)

    def report_to(self, dispatcher: Dispatcher) -> None:
        """Report to `dispatcher` from now on which engines take work."""
        self._dispatcher = dispatcher
        for engine in self._engines:
            if engine.recovery or engine.is_given_up:
                dispatcher.close(engine.index)

    async def renew(self) -> None:
        """Restart the engines inside the models' restarted processes, or those not running; the next `push` opens them.

        Raises:
            ModelDiedError: one of their processes died again.
        """
        if not self._lives_with_models and self._lost is None:
            return
        await self.aclose()
        self._weights = None  # they were lost with the models
        self._awake.set()
        gone = [engine for engine in self._engines if self._lives_with_models or engine.is_starting]
        for engine in gone:
            engine.handle.kill()
            engine.handle, engine.recovery, engine.is_new, engine.drains = self._launch(engine.index), None, True, False
            if self._dispatcher:
                self._dispatcher.close(engine.index)
        try:
            await all_of(self._start_first(engine) for engine in gone)
        except WorkerDiedError as error:
            raise ModelDiedError(str(error)) from error
        self._lost = None
        if self._dispatcher:
            self._dispatcher.recover()

    def suspect(self, index: int, handle: WorkerHandle, reason: AgentRLError) -> None:
        """Close an engine that did not answer a call, until it is known to be alive.

        Args:
            index: number of the engine.
            handle: the handle that was called; ignored if the engine has a new process by now.
            reason: error of the call.
        """
        engine = self._engines[index]
        if engine.handle is handle:
            self._close(engine, reason, is_certain=False)

    def drain(self, index: int, *, within_s: float) -> None:
        """Move an engine to another process because its machine is about to leave; this is not counted as a death.

        The engine gets no new requests, but still gets new weights. Requests that still run after `within_s` seconds restart on
        another engine. The new process runs wherever Ray has room, and is opened with the current weights.
        """
        engine = self._engines[index]
        if engine.recovery or engine.is_given_up:
            return  # it is already being replaced
        if self._dispatcher:
            self._dispatcher.close(index)
        engine.drains = True
        engine.recovery = asyncio.create_task(self._move(engine, within_s))
        engine.recovery.add_done_callback(self._report_bug)

    async def sleep(self) -> None:
        """Drop the weights and caches of all engines until the next `push`; a dead engine is restarted after it."""
        async with self._weights_change:
            self._awake.clear()
            await all_of(self._put_to_sleep(engine) for engine in self._served())
            await all_of(engine.start_done.wait() for engine in self._engines)

    async def push(self, publish: Publish, *, version: int) -> None:
        """Publish weights and load them into every engine as `version`.

        A dead engine does not hold up the others: it gets these weights before it is opened. A stream, however, begins when all
        engines have come: if one is missing for two minutes, all engines restart.

        Args:
            publish: takes the names of the engines that will load the weights. A stream is published again for every engine
                that comes later.
            version: version of these weights.

        Raises:
            EngineError: a living engine refuses the weights, or no engine is left.
        """
        async with self._weights_change:  # engines may still read the last weights
            if self._lost:
                raise self._lost
            served = self._served()
            self._weights, self._publish = (await publish([engine.name for engine in served]), version), publish
            await all_of(self._push_to(engine) for engine in served)
            self._awake.set()

    async def abort_requests_of(self, caller: str) -> None:
        """Abort the requests of a dead worker on every engine; engines that do not answer are skipped.

        Args:
            caller: the worker's `WorkerHandle.caller_id`.
        """

        async def ask(handle: WorkerHandle) -> None:
            with contextlib.suppress(TimeoutError, AgentRLError):  # the next caller reports it
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await handle.abort_requests_of(caller)

        await all_of(ask(engine.handle) for engine in self._engines if not engine.is_given_up)

    def take_num_deaths(self) -> int:
        """Return the number of deaths since the last call."""
        number, self._num_deaths = self._num_deaths, 0
        return number

    async def aclose(self) -> None:
        """Cancel all restarts."""
        recoveries = [engine.recovery for engine in self._engines if engine.recovery]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    def _served(self) -> list[EngineState]:
        return [engine for engine in self._engines if not engine.is_given_up and (engine.drains or not engine.recovery)]

    async def _put_to_sleep(self, engine: EngineState) -> None:
        engine.sleeps = True
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await engine.handle.sleep()
        except (TimeoutError, WorkerDiedError, EngineError) as error:
            self._close(engine, error, is_certain=True)

    async def _push_to(self, engine: EngineState) -> None:
        try:
            await self._load_weights(engine)
            if engine.is_new:
                await self._open(engine)
        except (TimeoutError, WorkerDiedError, EngineDeadError) as error:
            self._close(engine, error, is_certain=True)
        except EngineError as error:
            if await _answers(engine.handle):
                raise
            self._close(engine, error, is_certain=True)

    async def _load_weights(self, engine: EngineState) -> None:
        if self._weights:
            source, version = self._weights
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                if engine.sleeps:
                    await engine.handle.wake(("weights",))
                if self._nearest:
                    source = await self._nearest(source, engine.handle)
                await engine.handle.load_weights(replace(source, receiver=engine.name), version=version)
                if engine.sleeps:  # only now: the source of the copy may need the memory of the cache
                    await engine.handle.wake(("kv_cache",))
                    engine.sleeps = False

    def _close(self, engine: EngineState, reason: Exception, *, is_certain: bool) -> None:
        if engine.recovery or engine.is_given_up:
            return  # closed already
        if self._dispatcher:
            self._dispatcher.close(engine.index)
        engine.recovery = asyncio.create_task(self._recover(engine, reason, is_certain=is_certain))
        engine.recovery.add_done_callback(self._report_bug)

    async def _move(self, engine: EngineState, within_s: float) -> None:
        logger.info("engine %d: drains, for at most %g s", engine.index, within_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if self._dispatcher:
                    await self._dispatcher.emptied(engine.index)
        engine.drains = False
        try:
            await self._restart(engine)
            await self._load_and_open(engine)
        except InsufficientResourcesError as error:
            self._fail(error)
        except (TimeoutError, AgentRLError) as error:
            await self._recover(engine, error, is_certain=True)

    async def _recover(self, engine: EngineState, reason: Exception, *, is_certain: bool) -> None:
        """Open the engine once it is alive and has the current weights, in a new process if needed."""
        lives = not is_certain and await _answers(engine.handle)
        if lives:
            logger.warning("engine %d: alive, although a call failed: %s", engine.index, reason)
        while lives or self._should_restart(engine, reason):
            try:
                if self._require_models:
                    await self._require_models()
                if not lives:
                    await self._restart(engine)
                await self._load_and_open(engine)
                return
            except (InsufficientResourcesError, ModelDiedError) as error:
                # No other engine works and there is no room for this one, or its weights are lost.
                self._fail(error)
                return
            except (TimeoutError, AgentRLError) as error:
                lives, reason = False, error
        self._give_up(engine, reason)

    def _should_restart(self, engine: EngineState, reason: Exception) -> bool:
        """Count a death, and return whether the engine may be restarted."""
        self._num_deaths += 1
        lived_long = clock.now() - engine.opened_at > _FORGIVEN_AFTER_S
        engine.num_deaths = 1 if lived_long else engine.num_deaths + 1
        engine.opened_at = math.inf
        logger.warning("engine %d: dead: %s", engine.index, reason or "no answer in time")
        return engine.num_deaths <= _MAX_DEATHS and not self._lives_with_models

    async def _restart(self, engine: EngineState) -> None:
        """Replace the process; after consecutive deaths only after a pause."""
        engine.handle.kill()  # it may hang and keep its memory
        if engine.num_deaths > 1:
            await asyncio.sleep(_FIRST_BACK_OFF_S * 2 ** (engine.num_deaths - 2))
        logger.info("engine %d: restarting", engine.index)
        engine.handle, engine.sleeps = self._launch(engine.index), False
        engine.num_starts += 1
        await self._place(engine)
        await self._awake.wait()
        engine.start_done.clear()
        try:
            await started(engine.handle)
        finally:
            engine.start_done.set()

    async def _start_first(self, engine: EngineState) -> None:
        if self._until_placed:
            await self._until_placed(engine.handle)
        await started(engine.handle)

    async def _place(self, engine: EngineState) -> None:
        """Wait for room, without a limit while other engines work.

        Raises:
            InsufficientResourcesError: no other engine works, and there was no room for too long.
        """
        while self._until_placed:
            try:
                await self._until_placed(engine.handle)
                return
            except InsufficientResourcesError as error:
                if all(other.recovery or other.is_given_up for other in self._engines):
                    raise
                logger.warning("engine %d: no room, the run goes on without it: %s", engine.index, error)

    async def _load_and_open(self, engine: EngineState) -> None:
        async with self._weights_change:
            if not self._awake.is_set():
                await self._put_to_sleep(engine)
                engine.recovery, engine.is_new = None, True  # the next push wakes and opens it
                return
            if self._weights and self._publish and self._weights[0].transport.is_stream:
                self._weights = await self._publish([engine.name]), self._weights[1]
            await self._load_weights(engine)
            await self._open(engine)

    async def _open(self, engine: EngineState) -> None:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            kv_tokens = (await engine.handle.stats()).kv_tokens_capacity
        engine.recovery, engine.is_new, engine.opened_at = None, False, clock.now()
        if self._dispatcher:
            self._dispatcher.reopen(engine.index, kv_tokens=kv_tokens)
        logger.info("engine %d: open", engine.index)

    def _give_up(self, engine: EngineState, reason: Exception) -> None:
        if self._lives_with_models:
            why = reason or "no answer in time"
            self._fail(ModelDiedError(f"engine {engine.index}, in a process of the models: {why}"))
            return
        engine.is_given_up = True
        engine.handle.kill()
        logger.error("engine %d: died %d times in a row, not restarted", engine.index, engine.num_deaths)
        if all(other.is_given_up for other in self._engines):
            self._fail(
                EngineError(
                    f"engines: all {len(self._engines)} died {_MAX_DEATHS + 1} times in a row, the last one of: "
                    f"{reason or 'no answer in time'}. See `run.log` and `ray_logs/` in the run's directory"
                )
            )

    def _fail(self, error: AgentRLError) -> None:
        self._lost = error
        if self._dispatcher:
            self._dispatcher.fail(error)

    def _report_bug(self, recovery: asyncio.Task[None]) -> None:
        """End the run if the recovery task failed by a bug: nobody else awaits it."""
        if not recovery.cancelled() and (error := recovery.exception()):
            logger.error("engines: a recovery failed", exc_info=error)
            self._fail(EngineError(f"engines: a recovery failed, which is a bug: {error!r}"))


async def _answers(handle: WorkerHandle) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await handle.stats()
    except (TimeoutError, AgentRLError):
        return False
    return True
