"""The engines of a run: a dead engine is closed at once, restarted in a new process, and opened with the current weights.

Nothing is polled. A failed call or weight load reports the engine (`suspect`); the fleet asks it once more, and replaces its
process if it is dead. Calls on the old handle raise `WorkerDiedError`, so no work reaches an engine without its weights.

Engines inside the models' processes are not restarted one by one: their death is the models' death. It fails everything that
waits for an engine, and `renew` takes the engines of the new model processes.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from agentrl import clock
from agentrl.cluster.engine_state import Dispatcher, EngineState, FleetEngine
from agentrl.cluster.ray.handles import WorkerHandle, all_of, started
from agentrl.engine.base import EngineStats
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


class EngineFleet:
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
            until_placed: waits until a process is placed, or raises `InsufficientResourcesError`; absent: each is at once.
            nearest: maps published weights to the copy nearest to an engine.
            require_models: raises `ModelDiedError` if a process of the models is gone.
        """
        self._launch = launch
        self._lives_with_models = lives_with_models
        self._until_placed = until_placed
        self._nearest = nearest
        self._require_models = require_models
        self._engines = [FleetEngine(index, launch(index)) for index in range(num_engines)]
        self._dispatcher: Dispatcher | None = None
        self._loads_weights = False
        self._awake = asyncio.Event()
        """Cleared between `sleep` and the next `load`, while others use the memory."""
        self._awake.set()
        self.came_late = asyncio.Event()
        """Set when an engine begins to wait for weights."""
        self._lost: AgentRLError | None = None
        self._num_deaths = 0

    def __len__(self) -> int:
        return len(self._engines)

    def __getitem__(self, index: int) -> WorkerHandle:
        return self._engines[index].handle

    def __iter__(self) -> Iterator[WorkerHandle]:
        return (engine.handle for engine in self._engines)

    async def start(self) -> None:
        """Load the model in every engine; the first failure ends the run."""
        await all_of(map(self._start_first, self._engines))

    def report_to(self, dispatcher: Dispatcher) -> None:
        """Report to `dispatcher` from now on which engines take work."""
        self._dispatcher = dispatcher
        for engine in self._engines:
            if engine.state is not EngineState.OPEN:
                dispatcher.close(engine.index)

    async def renew(self) -> None:
        """Restart the engines inside the models' restarted processes, or those not running; the next `load` opens them."""
        if not self._lives_with_models and self._lost is None:
            return
        await self.aclose()
        self._awake.set()
        kept = () if self._lives_with_models else (EngineState.OPEN, EngineState.GIVEN_UP)
        gone = [engine for engine in self._engines if engine.state not in kept]
        for engine in gone:
            self._launch_again(engine)
            self._enter(engine, EngineState.WAITING)
        try:
            await all_of(map(self._start_first, gone))
        except WorkerDiedError as error:
            raise ModelDiedError(str(error)) from error
        self._lost = None
        if self._dispatcher:
            self._dispatcher.recover()

    def suspect(self, index: int, handle: WorkerHandle, reason: AgentRLError) -> None:
        """Close an engine that did not answer a call on `handle`, until it is known to be alive."""
        if self._engines[index].handle is handle:  # it has no new process yet
            self._close(self._engines[index], reason, is_certain=False)

    async def sleep(self) -> None:
        """Drop the weights and caches of all engines until the next `load`; a dead engine is restarted after it."""
        self._awake.clear()

        async def put_to_sleep(engine: FleetEngine) -> None:
            async with engine.starting:  # an engine that recovers goes to sleep by itself
                if engine.state.takes_weights and not engine.is_asleep:
                    try:
                        await self._put_to_sleep(engine)
                    except (TimeoutError, WorkerDiedError, EngineError) as error:
                        self._close(engine, error)

        await all_of(map(put_to_sleep, self._engines))

    def receivers(self, *, late: bool = False) -> list[str]:
        """Return the names of the engines that the next `load` serves; `late`: only those that came after the last one."""
        if self._lost:
            raise self._lost
        if late:
            return [e.name for e in self._engines if e.state is EngineState.WAITING and self._awake.is_set()]
        return [e.name for e in self._engines if e.state.takes_weights]

    @property
    def takes_work(self) -> bool:
        """True while an engine is open."""
        return any(engine.state is EngineState.OPEN for engine in self._engines)

    def hold(self, source: WeightSource, names: Sequence[str]) -> bool:
        """Return whether all engines with these names have the weights of `source`."""
        return all(e.weights is source for e in self._engines if e.name in names)

    async def load(self, source: WeightSource) -> None:
        """Load weights into every living engine that lacks them, and open the engines that waited for them.

        A dead engine does not hold up the others: it asks for the weights when it has restarted (`came_late`).

        Raises:
            EngineError: an engine that worked before refuses the weights. The others then have them, unless it was a stream.
        """
        if self._lost:
            raise self._lost
        self._loads_weights = True
        # A stream waits for every engine that it was published for, also for one that is suspected by now.
        is_stream = source.transport.is_stream
        takers = [e for e in self._engines if source.is_for(e.name) and (is_stream or e.state.takes_weights)]
        loads = [self._load(engine, source) for engine in takers]
        if is_stream:  # which does not go on without an engine that refused it
            await all_of(loads)
        else:  # an engine that is cancelled in the middle of a load may have to be replaced
            for result in await asyncio.gather(*loads, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        self._awake.set()

    async def abort_requests_of(self, caller: str) -> None:
        """Abort the requests of the dead worker with this `WorkerHandle.caller_id` on every engine that answers."""

        async def ask(handle: WorkerHandle) -> None:
            with contextlib.suppress(TimeoutError, AgentRLError):  # the next caller reports it
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await handle.abort_requests_of(caller)

        await all_of(ask(engine.handle) for engine in self._engines if engine.state is not EngineState.GIVEN_UP)

    async def loads(self) -> list[EngineStats | None]:
        """Return the load of each engine; None where it does not answer."""

        async def load_of(handle: WorkerHandle) -> EngineStats | None:
            with contextlib.suppress(TimeoutError, AgentRLError):  # the next caller reports it
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    return await handle.stats()
            return None

        return await all_of(map(load_of, self))

    def take_num_deaths(self) -> int:
        """Return the number of deaths since the last call."""
        number, self._num_deaths = self._num_deaths, 0
        return number

    def fail(self, error: AgentRLError) -> None:
        """Fail everything that waits for an engine, until `renew`."""
        self._lost = error
        if self._dispatcher:
            self._dispatcher.fail(error)

    async def aclose(self) -> None:
        """Cancel all restarts."""
        recoveries = [engine.recovery for engine in self._engines if engine.recovery]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    def _enter(self, engine: FleetEngine, state: EngineState, *, kv_tokens: int = 0) -> None:
        """Change the state of an engine, in the order of `EngineState`; `kv_tokens` is the memory of one that opens."""
        was_open, engine.state = engine.state is EngineState.OPEN, state
        if state is EngineState.OPEN:
            engine.opened_at = clock.now()
            logger.info("engine %d: open", engine.index)
            if self._dispatcher:
                self._dispatcher.reopen(engine.index, kv_tokens=kv_tokens)
        elif was_open and self._dispatcher:
            self._dispatcher.close(engine.index)
        if state is EngineState.WAITING:
            self.came_late.set()

    def _report_bug(self, recovery: asyncio.Task[None]) -> None:
        """End the run if the recovery task failed by a bug: nobody else awaits it."""
        if not recovery.cancelled() and (error := recovery.exception()):
            logger.error("engines: a recovery failed", exc_info=error)
            self.fail(EngineError(f"engines: a recovery failed, which is a bug: {error!r}"))

    def _close(self, engine: FleetEngine, reason: Exception, *, is_certain: bool = True) -> None:
        if engine.state.takes_weights:  # any other is closed, and replaced if need be
            self._enter(engine, EngineState.RECOVERING)
            engine.recovery = asyncio.create_task(self._recover(engine, reason, is_certain=is_certain))
            engine.recovery.add_done_callback(self._report_bug)

    async def _load(self, engine: FleetEngine, source: WeightSource) -> None:
        try:
            if engine.weights is not source:
                async with asyncio.timeout(_LOAD_TIMEOUT_S):
                    await self._load_weights(engine, source)
            if engine.state is EngineState.WAITING:
                await self._open(engine)
        except (TimeoutError, WorkerDiedError, EngineDeadError) as error:
            self._close(engine, error)
        except EngineError as error:
            if engine.state is EngineState.OPEN and await _answers(engine.handle):
                raise
            self._close(engine, error)

    async def _load_weights(self, engine: FleetEngine, source: WeightSource) -> None:
        handle, was_asleep = engine.handle, engine.is_asleep
        if was_asleep:
            await handle.wake(("weights",))
        near = await self._nearest(source, handle) if self._nearest else source
        await handle.load_weights(replace(near, receiver=engine.name), version=source.version)
        if was_asleep:  # only now: the source of the copy may need the memory of the cache
            await handle.wake(("kv_cache",))
        if engine.handle is handle:  # otherwise a new process has been started, without weights
            engine.is_asleep, engine.weights = False, source

    async def _open(self, engine: FleetEngine) -> None:
        state, handle = engine.state, engine.handle
        kv_tokens = await _kv_tokens(handle)
        if engine.state is state and engine.handle is handle:  # otherwise it has been suspected meanwhile
            self._enter(engine, EngineState.OPEN, kv_tokens=kv_tokens)

    async def _put_to_sleep(self, engine: FleetEngine) -> None:
        engine.is_asleep, engine.weights = True, None
        async with asyncio.timeout(_LOAD_TIMEOUT_S):
            await engine.handle.sleep()

    async def _recover(self, engine: FleetEngine, reason: Exception, *, is_certain: bool) -> None:
        """Make a living engine wait for weights, in a new process if needed."""
        lives = not is_certain and await _answers(engine.handle)
        if lives:
            logger.warning("engine %d: alive, although a call failed: %s", engine.index, reason)
        while lives or self._should_restart(engine, reason):
            try:
                if self._require_models:
                    await self._require_models()
                if not lives:
                    await self._replace(engine)
                async with engine.starting:
                    if not lives:
                        await started(engine.handle)
                    if not self._awake.is_set():
                        await self._put_to_sleep(engine)
                    if self._loads_weights:
                        self._enter(engine, EngineState.WAITING)
                    else:
                        await self._open(engine)
                return
            except (InsufficientResourcesError, ModelDiedError) as error:
                # No other engine works and there is no room for this one, or its weights are lost.
                self.fail(error)
                return
            except (TimeoutError, AgentRLError) as error:
                lives, reason = False, error
        self._give_up(engine, reason)

    def _should_restart(self, engine: FleetEngine, reason: Exception) -> bool:
        """Count a death, and return whether the engine may be restarted."""
        self._num_deaths += 1
        lived_long = clock.now() - engine.opened_at > _FORGIVEN_AFTER_S
        engine.num_deaths = 1 if lived_long else engine.num_deaths + 1
        engine.opened_at = math.inf
        logger.warning("engine %d: dead: %s", engine.index, str(reason) or "no answer in time")
        return engine.num_deaths <= _MAX_DEATHS and not self._lives_with_models

    async def _replace(self, engine: FleetEngine) -> None:
        """Replace the process, after consecutive deaths only after a pause, and wait until it may take its memory.

        Raises:
            InsufficientResourcesError: no other engine works, and there was no room for too long.
        """
        engine.handle.kill()  # it may hang and keep its memory
        if engine.num_deaths > 1:
            await asyncio.sleep(_FIRST_BACK_OFF_S * 2 ** (engine.num_deaths - 2))
        logger.info("engine %d: restarting", engine.index)
        self._launch_again(engine)
        while True:
            try:
                if self._until_placed:
                    await self._until_placed(engine.handle)
                break
            except InsufficientResourcesError as error:
                if not any(other.state.takes_weights for other in self._engines):
                    raise
                logger.warning("engine %d: no room, the run goes on without it: %s", engine.index, error)
        await self._awake.wait()

    def _launch_again(self, engine: FleetEngine) -> None:
        engine.handle.kill()
        engine.handle, engine.weights, engine.is_asleep = self._launch(engine.index), None, False
        engine.num_starts += 1

    async def _start_first(self, engine: FleetEngine) -> None:
        if self._until_placed:
            await self._until_placed(engine.handle)
        await started(engine.handle)

    def _give_up(self, engine: FleetEngine, reason: Exception) -> None:
        why = str(reason) or "no answer in time"
        if self._lives_with_models:
            self.fail(ModelDiedError(f"engine {engine.index}, in a process of the models: {why}"))
            return
        self._enter(engine, EngineState.GIVEN_UP)
        engine.handle.kill()
        logger.error("engine %d: died %d times in a row, not restarted", engine.index, engine.num_deaths)
        if all(other.state is EngineState.GIVEN_UP for other in self._engines):
            self.fail(
                EngineError(
                    f"engines: all {len(self._engines)} died {_MAX_DEATHS + 1} times in a row, the last one of: {why}. "
                    "See `run.log` and `ray_logs/` in the run's directory"
                )
            )


async def _kv_tokens(handle: WorkerHandle) -> int:
    async with asyncio.timeout(_ANSWER_TIMEOUT_S):
        return (await handle.stats()).kv_tokens_capacity


async def _answers(handle: WorkerHandle) -> bool:
    try:
        await _kv_tokens(handle)
    except (TimeoutError, AgentRLError):
        return False
    return True
