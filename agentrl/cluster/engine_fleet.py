"""The engines of a run: one that dies is closed at once, started again in a new process, and opened with the current weights.

Nothing is polled. Whoever finds that an engine does not answer says so (`suspect`, or a weight push that fails); it is asked
once more, and if it is dead, a new process takes its place. Who still holds the old handle gets a `WorkerDiedError`, so no work
can reach an engine that has not been given its weights.

Engines that live in the processes of the models are not started again one by one: such a death is the models' death, which ends
everything that waits for an engine, and `renew` takes the engines that come with the new models.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import overload

from agentrl import clock
from agentrl.cluster.engine_seat import Ledger, Seat
from agentrl.cluster.handles import WorkerHandle, all_of, started
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
"""An engine answers between two steps; one that has said nothing for so long hangs."""
_LOAD_TIMEOUT_S = 300.0
_DROP_WEIGHTS = 2
"""The level of sleep after which an engine needs new weights."""
_MAX_DEATHS = 5
"""Of one engine, each soon after the one before; then it stays dead."""
_FORGIVEN_AFTER_S = 600.0
"""An engine that worked for so long did not die of what killed it before."""
_FIRST_BACK_OFF_S = 1.0
"""Before an engine that died again is started; twice as long with every further death."""

Publish = Callable[[Sequence[str]], Awaitable[WeightSource]]
"""Has the weights where these engines can read them, or begins to send them."""


class EngineFleet(Sequence[WorkerHandle]):
    """The handles of all engines, by number; a handle changes when its engine has been started again."""

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
            launch: gives the process of engine number n; called again after one died.
            num_engines: how many there are.
            lives_with_models: their processes hold parts of models too, and come and go with these (`renew`).
            until_placed: waits until a process is placed, or raises `InsufficientResourcesError`; absent: no waiting.
            nearest: gives where an engine finds the weights that were published; absent: where they were.
            require_models: raises `ModelDiedError` where a process of the models is gone, and their weights with it.
        """
        self._launch = launch
        self._lives_with_models = lives_with_models
        self._until_placed = until_placed
        self._nearest = nearest
        self._require_models = require_models
        self._seats = [Seat(index, launch(index)) for index in range(num_engines)]
        self._ledger: Ledger | None = None
        self._weights: tuple[WeightSource, int] | None = None
        self._publish: Publish | None = None
        self._weights_change = asyncio.Lock()
        self._awake = asyncio.Event()
        """Between `sleep` and the next `push` the memory is somebody else's."""
        self._awake.set()
        self._lost: AgentRLError | None = None
        self._num_deaths = 0

    def __len__(self) -> int:
        return len(self._seats)

    @overload
    def __getitem__(self, index: int) -> WorkerHandle: ...

    @overload
    def __getitem__(self, index: slice) -> list[WorkerHandle]: ...

    def __getitem__(self, index: int | slice) -> WorkerHandle | list[WorkerHandle]:
        if isinstance(index, slice):
            return [seat.handle for seat in self._seats[index]]
        return self._seats[index].handle

    async def start(self) -> None:
        """Have every engine load its model; the first that cannot ends the run."""
        await all_of(self._start_first(seat) for seat in self._seats)

    def report_to(self, ledger: Ledger) -> None:
        """Tell `ledger` from now on which engines may be given work."""
        self._ledger = ledger
        for seat in self._seats:
            if seat.recovery or seat.is_given_up:
                ledger.close(seat.index)

    async def renew(self) -> None:
        """Start the engines that went with the models, once these are back; the next `push` opens them.

        Those are all where they live with the models. Of others it is those that were dead when the models were found to be;
        the rest stays as it is.

        Raises:
            ModelDiedError: one of their processes died again.
        """
        if not self._lives_with_models and self._lost is None:
            return
        await self.aclose()
        self._weights = None  # those weights went with the models that published them
        self._awake.set()
        gone = [seat for seat in self._seats if self._lives_with_models or seat.is_to_come]
        for seat in gone:
            seat.handle.kill()
            seat.handle, seat.recovery, seat.is_new, seat.drains = self._launch(seat.index), None, True, False
            if self._ledger:
                self._ledger.close(seat.index)
        try:
            await all_of(self._start_first(seat) for seat in gone)
        except WorkerDiedError as error:
            raise ModelDiedError(str(error)) from error
        self._lost = None
        if self._ledger:
            self._ledger.recover()

    def suspect(self, index: int, handle: WorkerHandle, reason: AgentRLError) -> None:
        """Close an engine that did not answer a call, until it is known whether it lives.

        Args:
            index: its number.
            handle: whom the call was made to: there may be another process by now.
            reason: how the call failed.
        """
        seat = self._seats[index]
        if seat.handle is handle:
            self._close(seat, reason, is_certain=False)

    def drain(self, index: int, *, within_s: float) -> None:
        """Put an engine into another process, because the machine below it is about to go; nothing is counted as a death.

        It gets nothing new from now on, and new weights as before. What is still on it after `within_s` seconds begins again on
        another engine. The new process runs where Ray has room for it, and is opened with the current weights.
        """
        seat = self._seats[index]
        if seat.recovery or seat.is_given_up:
            return  # it is being put into a new process anyway
        if self._ledger:
            self._ledger.close(index)
        seat.drains = True
        seat.recovery = asyncio.create_task(self._move(seat, within_s))
        seat.recovery.add_done_callback(self._note_bug)

    async def sleep(self) -> None:
        """Have every engine drop its weights and its cache; it wakes with the next weights. One that has died is put aside.

        None is started until then; those that are just starting are waited for.
        """
        async with self._weights_change:
            self._awake.clear()
            await all_of(self._fall_asleep(seat) for seat in self._served())
            await all_of(seat.start_over.wait() for seat in self._seats)

    async def push(self, publish: Publish, *, version: int) -> None:
        """Load what `publish` gives into every engine, and stamp it `version`.

        An engine that is dead or dies here does not hold up the others: it gets these weights before it is opened. But a stream
        begins when all have come: after two minutes without one of them it is given up, and all start again.

        Args:
            publish: takes the names of the engines that will load it; called again for an engine that comes later, where the
                weights are a stream.
            version: of these weights.

        Raises:
            EngineError: an engine that lives refuses the weights, or no engine is left.
        """
        async with self._weights_change:  # the last weights must not be overwritten while an engine still reads them
            if self._lost:
                raise self._lost
            served = self._served()
            self._weights, self._publish = (await publish([seat.name for seat in served]), version), publish
            await all_of(self._push_to(seat) for seat in served)
            self._awake.set()

    async def abort_requests_of(self, caller: str) -> None:
        """Have every engine end what a worker that died has asked for; one that does not answer is passed over.

        Args:
            caller: the worker's `WorkerHandle.caller_id`.
        """

        async def ask(handle: WorkerHandle) -> None:
            with contextlib.suppress(TimeoutError, AgentRLError):  # found out by those who need it
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    await handle.abort_requests_of(caller)

        await all_of(ask(seat.handle) for seat in self._seats if not seat.is_given_up)

    def take_num_deaths(self) -> int:
        """Return how many engines died since the last call."""
        number, self._num_deaths = self._num_deaths, 0
        return number

    async def aclose(self) -> None:
        """Start nothing any more."""
        recoveries = [seat.recovery for seat in self._seats if seat.recovery]
        for recovery in recoveries:
            recovery.cancel()
        await asyncio.gather(*recoveries, return_exceptions=True)

    def _served(self) -> list[Seat]:
        return [seat for seat in self._seats if not seat.is_given_up and (seat.drains or not seat.recovery)]

    async def _fall_asleep(self, seat: Seat) -> None:
        seat.sleeps = True
        try:
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await seat.handle.sleep(_DROP_WEIGHTS)
        except (TimeoutError, WorkerDiedError, EngineError) as error:
            self._close(seat, error, is_certain=True)

    async def _push_to(self, seat: Seat) -> None:
        try:
            await self._load_weights(seat)
            if seat.is_new:
                await self._open(seat)
        except (TimeoutError, WorkerDiedError, EngineDeadError) as error:
            self._close(seat, error, is_certain=True)
        except EngineError as error:
            if await _answers(seat.handle):
                raise
            self._close(seat, error, is_certain=True)

    async def _load_weights(self, seat: Seat) -> None:
        if self._weights:
            source, version = self._weights
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                if seat.sleeps:
                    await seat.handle.wake(("weights",))
                if self._nearest:
                    source = await self._nearest(source, seat.handle)
                await seat.handle.load_weights(replace(source, receiver=seat.name), version=version)
                if seat.sleeps:  # what the weights have been copied from may have been in the way of the cache
                    await seat.handle.wake(("kv_cache",))
                    seat.sleeps = False

    def _close(self, seat: Seat, reason: Exception, *, is_certain: bool) -> None:
        if seat.recovery or seat.is_given_up:
            return  # somebody has seen it before
        if self._ledger:
            self._ledger.close(seat.index)
        seat.recovery = asyncio.create_task(self._recover(seat, reason, is_certain=is_certain))
        seat.recovery.add_done_callback(self._note_bug)

    async def _move(self, seat: Seat, within_s: float) -> None:
        logger.info("engine %d: drains, for at most %g s", seat.index, within_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if self._ledger:
                    await self._ledger.emptied(seat.index)
        seat.drains = False
        try:
            await self._start_again(seat)
            await self._load_and_open(seat)
        except InsufficientResourcesError as error:
            self._fail(error)
        except (TimeoutError, AgentRLError) as error:
            await self._recover(seat, error, is_certain=True)

    async def _recover(self, seat: Seat, reason: Exception, *, is_certain: bool) -> None:
        """Open the engine once it is known to live and has the current weights; in a new process if need be."""
        lives = not is_certain and await _answers(seat.handle)
        if lives:
            logger.warning("engine %d: it lives, although a call to it failed: %s", seat.index, reason)
        while lives or self._may_live_again(seat, reason):
            try:
                if self._require_models:
                    await self._require_models()
                if not lives:
                    await self._start_again(seat)
                await self._load_and_open(seat)
                return
            except (InsufficientResourcesError, ModelDiedError) as error:
                # No engine has room, nor is any at work; or nobody has the weights that this one needs.
                self._fail(error)
                return
            except (TimeoutError, AgentRLError) as error:
                lives, reason = False, error
        self._give_up(seat, reason)

    def _may_live_again(self, seat: Seat, reason: Exception) -> bool:
        """Count a death, and return whether it is one of few in a row."""
        self._num_deaths += 1
        lived_long = clock.now() - seat.opened_at > _FORGIVEN_AFTER_S
        seat.num_deaths = 1 if lived_long else seat.num_deaths + 1
        seat.opened_at = math.inf
        logger.warning("engine %d: dead: %s", seat.index, reason or "no answer in time")
        return seat.num_deaths <= _MAX_DEATHS and not self._lives_with_models

    async def _start_again(self, seat: Seat) -> None:
        """Put a new process into the place of a dead one, after a while if it is not the first to die."""
        seat.handle.kill()  # it may hang, and would keep its memory
        if seat.num_deaths > 1:
            await asyncio.sleep(_FIRST_BACK_OFF_S * 2 ** (seat.num_deaths - 2))
        logger.info("engine %d: starting it again", seat.index)
        seat.handle, seat.sleeps = self._launch(seat.index), False
        seat.num_starts += 1
        await self._place(seat)
        await self._awake.wait()
        seat.start_over.clear()
        try:
            await started(seat.handle)
        finally:
            seat.start_over.set()

    async def _start_first(self, seat: Seat) -> None:
        if self._until_placed:
            await self._until_placed(seat.handle)
        await started(seat.handle)

    async def _place(self, seat: Seat) -> None:
        """Wait for room; for as long as it takes where other engines work.

        Raises:
            InsufficientResourcesError: none does, and there was no room for too long.
        """
        while self._until_placed:
            try:
                await self._until_placed(seat.handle)
                return
            except InsufficientResourcesError as error:
                if all(other.recovery or other.is_given_up for other in self._seats):
                    raise
                logger.warning("engine %d: the run goes on without it: %s", seat.index, error)

    async def _load_and_open(self, seat: Seat) -> None:
        async with self._weights_change:
            if not self._awake.is_set():
                await self._fall_asleep(seat)
                seat.recovery, seat.is_new = None, True  # the next push wakes and opens it
                return
            if self._weights and self._publish and self._weights[0].transport.is_stream:
                self._weights = await self._publish([seat.name]), self._weights[1]
            await self._load_weights(seat)
            await self._open(seat)

    async def _open(self, seat: Seat) -> None:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            kv_tokens = (await seat.handle.stats()).kv_tokens_capacity
        seat.recovery, seat.is_new, seat.opened_at = None, False, clock.now()
        if self._ledger:
            self._ledger.reopen(seat.index, kv_tokens=kv_tokens)
        logger.info("engine %d: open", seat.index)

    def _give_up(self, seat: Seat, reason: Exception) -> None:
        if self._lives_with_models:
            why = reason or "no answer in time"
            self._fail(ModelDiedError(f"engine {seat.index}, in a process of the models: {why}"))
            return
        seat.is_given_up = True
        seat.handle.kill()
        logger.error("engine %d: died %d times in a row, and is not started again", seat.index, seat.num_deaths)
        if all(other.is_given_up for other in self._seats):
            self._fail(
                EngineError(
                    f"engines: all {len(self._seats)} died {_MAX_DEATHS + 1} times in a row, and none is left; the last died "
                    f"of: {reason or 'no answer in time'}. See `run.log` and `ray_logs/` in the run's directory"
                )
            )

    def _fail(self, error: AgentRLError) -> None:
        self._lost = error
        if self._ledger:
            self._ledger.fail(error)

    def _note_bug(self, recovery: asyncio.Task[None]) -> None:
        """End the run where recovering failed by a mistake of ours: nobody else awaits it."""
        if not recovery.cancelled() and (error := recovery.exception()):
            logger.error("engines: recovering one failed", exc_info=error)
            self._fail(EngineError(f"engines: recovering one failed, which is a bug: {error!r}"))


async def _answers(handle: WorkerHandle) -> bool:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            await handle.stats()
    except (TimeoutError, AgentRLError):
        return False
    return True
