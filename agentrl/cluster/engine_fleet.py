"""The engines of a run: one that dies is closed at once, started again in a new process, and opened with the current weights.

Nothing is polled. Whoever finds that an engine does not answer says so (`suspect`, or a weight push that fails); it is asked
once more, and if it is dead, a new process takes its place. Who still holds the old handle gets a `WorkerDiedError`, so no work
can reach an engine that has not been given its weights.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

from agentrl import clock
from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.errors import AgentRLError, EngineDeadError, EngineError, WorkerDiedError
from agentrl.weight_sync.base import WeightSource

logger = logging.getLogger(__name__)

_ANSWER_TIMEOUT_S = 30.0
"""An engine answers between two steps; one that has said nothing for so long hangs."""
_START_TIMEOUT_S = 900.0
_LOAD_TIMEOUT_S = 300.0
_MAX_DEATHS = 5
"""Of one engine, each soon after the one before; then it stays dead."""
_FORGIVEN_AFTER_S = 600.0
"""An engine that worked for so long did not die of what killed it before."""
_FIRST_BACK_OFF_S = 1.0
"""Before an engine that died again is started; twice as long with every further death."""


class Ledger(Protocol):
    """Who gives work to the engines."""

    def close(self, engine: int) -> None:
        """Give engine number `engine` nothing new."""
        ...

    def reopen(self, engine: int) -> None:
        """Give it work again."""
        ...

    async def emptied(self, engine: int) -> None:
        """Return when nothing runs on engine number `engine`."""
        ...

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` for everybody who waits for an engine, now and later: there is none, and there will be none."""
        ...


@dataclass(slots=True, eq=False)
class _Seat:
    """One engine, whichever process it is in."""

    index: int
    handle: WorkerHandle
    is_given_up: bool = False
    recovery: asyncio.Task[None] | None = None
    """Runs while the engine is closed."""
    drains: bool = False
    """It is closed, and goes on with what it has."""
    num_deaths: int = 0
    """Each soon after the one before."""
    opened_at: float = field(default_factory=clock.now)
    """Infinite while it is dead."""


class EngineFleet(Sequence[WorkerHandle]):
    """The handles of all engines, by number; a handle changes when its engine has been started again."""

    def __init__(self, launch: Callable[[int], WorkerHandle], *, num_engines: int) -> None:
        """Start the processes.

        Args:
            launch: gives the process of engine number n; called again after one died.
            num_engines: how many there are.
        """
        self._launch = launch
        self._seats = [_Seat(index, launch(index)) for index in range(num_engines)]
        self._ledger: Ledger | None = None
        self._weights: tuple[WeightSource, int] | None = None
        self._weights_change = asyncio.Lock()
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
        await all_of(handle.start() for handle in self)

    def report_to(self, ledger: Ledger) -> None:
        """Tell `ledger` from now on which engines may be given work."""
        self._ledger = ledger
        for seat in self._seats:
            if seat.recovery or seat.is_given_up:
                ledger.close(seat.index)

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

    async def push(self, publish: Callable[[], Awaitable[WeightSource]], *, version: int) -> None:
        """Load what `publish` gives into every engine, and stamp it `version`.

        An engine that is dead or dies here does not hold up the others: it gets these weights before it is opened.

        Raises:
            EngineError: an engine that lives refuses the weights, or no engine is left.
        """
        async with self._weights_change:  # the last weights must not be overwritten while an engine still reads them
            if self._lost:
                raise self._lost
            self._weights = await publish(), version
            served = (seat for seat in self._seats if not seat.is_given_up and (seat.drains or not seat.recovery))
            await all_of(self._push_to(seat) for seat in served)

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

    async def _push_to(self, seat: _Seat) -> None:
        try:
            await self._load_weights(seat)
        except (TimeoutError, WorkerDiedError, EngineDeadError) as error:
            self._close(seat, error, is_certain=True)
        except EngineError as error:
            if await _answers(seat.handle):
                raise
            self._close(seat, error, is_certain=True)

    async def _load_weights(self, seat: _Seat) -> None:
        if self._weights:
            source, version = self._weights
            async with asyncio.timeout(_LOAD_TIMEOUT_S):
                await seat.handle.load_weights(source, version=version)

    def _close(self, seat: _Seat, reason: Exception, *, is_certain: bool) -> None:
        if seat.recovery or seat.is_given_up:
            return  # somebody has seen it before
        if self._ledger:
            self._ledger.close(seat.index)
        seat.recovery = asyncio.create_task(self._recover(seat, reason, is_certain=is_certain))
        seat.recovery.add_done_callback(self._note_bug)

    async def _move(self, seat: _Seat, within_s: float) -> None:
        logger.info("engine %d: drains, for at most %g s", seat.index, within_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                if self._ledger:
                    await self._ledger.emptied(seat.index)
        seat.drains = False
        try:
            await self._start_again(seat)
            await self._load_and_open(seat)
        except (TimeoutError, AgentRLError) as error:
            await self._recover(seat, error, is_certain=True)

    async def _recover(self, seat: _Seat, reason: Exception, *, is_certain: bool) -> None:
        """Open the engine once it is known to live and has the current weights; in a new process if need be."""
        lives = not is_certain and await _answers(seat.handle)
        if lives:
            logger.warning("engine %d: it lives, although a call to it failed: %s", seat.index, reason)
        while lives or self._may_live_again(seat, reason):
            try:
                if not lives:
                    await self._start_again(seat)
                await self._load_and_open(seat)
                return
            except (TimeoutError, AgentRLError) as error:
                lives, reason = False, error
        self._give_up(seat, reason)

    def _may_live_again(self, seat: _Seat, reason: Exception) -> bool:
        """Count a death, and return whether it is one of few in a row."""
        self._num_deaths += 1
        lived_long = clock.now() - seat.opened_at > _FORGIVEN_AFTER_S
        seat.num_deaths = 1 if lived_long else seat.num_deaths + 1
        seat.opened_at = math.inf
        logger.warning("engine %d: dead: %s", seat.index, reason or "no answer in time")
        return seat.num_deaths <= _MAX_DEATHS

    async def _start_again(self, seat: _Seat) -> None:
        """Put a new process into the place of a dead one, after a while if it is not the first to die."""
        seat.handle.kill()  # it may hang, and would keep its memory
        if seat.num_deaths > 1:
            await asyncio.sleep(_FIRST_BACK_OFF_S * 2 ** (seat.num_deaths - 2))
        logger.info("engine %d: starting it again", seat.index)
        seat.handle = self._launch(seat.index)
        async with asyncio.timeout(_START_TIMEOUT_S):
            await seat.handle.start()

    async def _load_and_open(self, seat: _Seat) -> None:
        async with self._weights_change:
            await self._load_weights(seat)
            self._open(seat)

    def _open(self, seat: _Seat) -> None:
        seat.recovery, seat.opened_at = None, clock.now()
        if self._ledger:
            self._ledger.reopen(seat.index)
        logger.info("engine %d: open", seat.index)

    def _give_up(self, seat: _Seat, reason: Exception) -> None:
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
