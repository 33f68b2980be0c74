"""Admission control: a ledger of reserved KV memory decides which trajectory may start, and on which engine.

An engine may hold several copies of the policy, each with KV memory of its own. A trajectory uses the memory of one copy.

Admission is driven by events: a trajectory enters, and gets a place at once or when others leave. The memory that an engine
itself reports as free is not used: it includes that of trajectories that wait for a tool and will continue.
"""

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentrl import clock
from agentrl.agent_loop.scheduling.concurrency_limit import JudgePressure
from agentrl.agent_loop.scheduling.kv_forecast import KvForecast
from agentrl.agent_loop.scheduling.priority_queue import Place, Waiting, WaitingLine
from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import TrajectorySummary

_FORECAST_SHARE = 0.9
"""Share of an engine's memory that the forecast may fill. An engine whose memory overflows preempts requests and computes them
again; this slows down the others, which then hold their memory longer, so the overflow does not end by itself.
"""


@dataclass(slots=True, kw_only=True)
class _Room:
    """Reservations on one copy of the policy in one engine."""

    kv_tokens: float
    is_open: bool = True
    started_at: dict[int, float] = field(default_factory=dict)
    """Start time of each trajectory that has a place, keyed by the place's number."""
    prompt_tokens: int = 0
    max_tokens: int = 0

    @property
    def num_trajectories(self) -> int:
        return len(self.started_at)

    def add(self, place: Place) -> None:
        self.started_at[place.number] = clock.now()
        self.prompt_tokens += place.num_prompt_tokens
        self.max_tokens += place.max_tokens

    def remove(self, place: Place) -> None:
        del self.started_at[place.number]
        self.prompt_tokens -= place.num_prompt_tokens
        self.max_tokens -= place.max_tokens


class Admission:
    """Assigns places to trajectories; a trajectory keeps its place until `leave`."""

    def __init__(
        self,
        kv_tokens: Sequence[int],
        *,
        max_trajectories: int,
        max_response_tokens: int,
        policy: Literal["reserve_max", "expected"],
        num_copies: int = 1,
        block_tokens: int = 1,
    ) -> None:
        """Start with empty engines.

        Args:
            kv_tokens: KV memory of each engine, all its copies together, in tokens; 0: unbounded.
            max_trajectories: largest number on one engine at once.
            max_response_tokens: largest response of one trajectory, observations included.
            policy: `reserve_max` admits what fits even if every trajectory reaches its longest length; `expected` admits what
                fits according to the lengths of finished trajectories.
            num_copies: copies of the policy in each engine, with equal shares of its memory.
            block_tokens: size of a KV block; a trajectory holds whole blocks.
        """
        self._rooms = [
            _Room(kv_tokens=_copy_share(number, num_copies)) for number in kv_tokens for _ in range(num_copies)
        ]
        self._num_copies = num_copies
        self._longest_prompt_tokens = 0
        """Longest prompt that `refuse_too_long` was called with."""
        self._max_trajectories = max_trajectories
        self._max_response_tokens = max_response_tokens
        self._block_tokens = block_tokens
        self._may_expect = policy == "expected"
        self._forecast = KvForecast(max_response_tokens)
        self._pressure = JudgePressure(least=len(kv_tokens))
        self._order, self._num_started = itertools.count(), 0
        self._line = WaitingLine()
        self._failure: AgentRLError | None = None

    def refuse_too_long(self, num_prompt_tokens: int) -> None:
        """Refuse a prompt that would wait for ever.

        Raises:
            ConfigError: no copy in any engine has the KV memory for such a trajectory at its longest.
        """
        self._longest_prompt_tokens = max(self._longest_prompt_tokens, num_prompt_tokens)
        needed, largest = self._longest(num_prompt_tokens), max(room.kv_tokens for room in self._rooms)
        owner = "an engine" if self._num_copies == 1 else "one copy in an engine"
        if needed > largest:
            raise ConfigError(
                f"rollout.max_response_tokens: with a prompt of {num_prompt_tokens} tokens a trajectory takes up to {needed}, "
                f"and the KV memory of {owner} holds {largest:.0f}. Lower it, or give the engines more memory."
            )

    async def enter(self, prompt_id: str, *, num_prompt_tokens: int, step: int = 0) -> Place:
        """Wait for a place; trajectories of an earlier `step` go first.

        Raises:
            AgentRLError: no engine is left (`fail`).
        """
        if self._failure:
            raise self._failure
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        waiting = Waiting(
            prompt_id=prompt_id, step=step, order=next(self._order), num_prompt_tokens=num_prompt_tokens, place=future
        )
        self._line.push(waiting)
        self._admit()
        try:
            return await future
        except asyncio.CancelledError:
            self._line.remove(waiting)
            if future.done() and not future.cancelled() and not future.exception():
                self.leave(future.result())  # the place came at the same moment
            else:
                self._admit()  # the next in line may need less
            raise

    def leave(self, place: Place) -> None:
        """Release a place."""
        self._room(place).remove(place)
        self._admit()

    def close(self, engine: int) -> None:
        """Admit nothing on `engine` until `reopen`; running trajectories keep their places."""
        for room in self._rooms_of(engine):
            room.is_open = False

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        """Admit trajectories on `engine` again, whose copies now have `kv_tokens` together; 0: unbounded.

        If the longest prompt no longer fits any engine, all waiting trajectories fail (`fail`): it would wait for ever.
        """
        for room in self._rooms_of(engine):
            room.is_open, room.kv_tokens = True, _copy_share(kv_tokens, self._num_copies)
        try:
            self.refuse_too_long(self._longest_prompt_tokens)
        except ConfigError as error:
            self.fail(error)
        self._admit()

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` in every present and later `enter`."""
        self._failure = error
        while self._line:
            waiting = self._line.first()
            self._line.remove(waiting)
            if not waiting.place.done():
                waiting.place.set_exception(error)

    def recover(self) -> None:
        """Undo `fail`: an engine is coming back."""
        self._failure = None

    @property
    def num_running(self) -> int:
        """Trajectories that have a place, on all engines."""
        return sum(room.num_trajectories for room in self._rooms)

    @property
    def limit(self) -> float:
        """Largest number of running trajectories that the judge's queue allows."""
        return self._pressure.limit

    def learn_judge_wait(self, place: Place, summary: TrajectorySummary) -> None:
        """Record how long a trajectory waited for the judge; call it before `leave`."""
        self._pressure.learn(summary, number=place.number, num_running=self.num_running, num_started=self._num_started)

    def learn(
        self, place: Place, prompt_id: str, *, step: int = 0, num_response_tokens: int, duration_s: float
    ) -> None:
        """Record length and duration of a trajectory that ended normally; call it before `leave`."""
        self._line.learn((step, prompt_id), duration_s)
        if self._may_expect:
            self._forecast.learn(num_response_tokens, duration_s)

    def _admit(self) -> None:
        while self._line and self.num_running < self._pressure.limit:
            waiting = self._line.first()
            place = self._find_place(waiting.num_prompt_tokens)
            if place is None:
                return
            self._line.remove(waiting)
            if not waiting.place.done():  # otherwise it is being cancelled
                self._room(place).add(place)
                self._num_started += 1
                waiting.place.set_result(place)

    def _find_place(self, num_prompt_tokens: int) -> Place | None:
        """Return a place on the copy with the fewest trajectories among those where one more fits."""
        max_tokens = self._longest(num_prompt_tokens)
        fitting = [
            (room.num_trajectories, room.max_tokens, index)
            for index, room in enumerate(self._rooms)
            if self._num_on(index // self._num_copies) < self._max_trajectories
            and self._fits(room, num_prompt_tokens, max_tokens)
        ]
        if not fitting:
            return None
        engine, copy = divmod(min(fitting)[2], self._num_copies)
        return Place(
            engine=engine,
            copy=copy,
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            number=self._num_started,
        )

    def _fits(self, room: _Room, num_prompt_tokens: int, max_tokens: int) -> bool:
        if not room.is_open:
            return False
        if room.max_tokens + max_tokens <= room.kv_tokens:
            return True
        if not self._may_expect:
            return False
        if self._forecast.is_out_of_date:
            self._forecast.renew(self._ages_s(self._rooms))
        ages_s = np.append(self._ages_s([room]), 0.0)
        peak_tokens = self._forecast.peak_tokens(ages_s, room.prompt_tokens + num_prompt_tokens)
        return peak_tokens <= _FORECAST_SHARE * room.kv_tokens

    def _longest(self, num_prompt_tokens: int) -> int:
        """Return the tokens of a trajectory with such a prompt at its longest, in whole blocks."""
        num_blocks = -(-(num_prompt_tokens + self._max_response_tokens) // self._block_tokens)
        return num_blocks * self._block_tokens

    def _room(self, place: Place) -> _Room:
        return self._rooms_of(place.engine)[place.copy]

    def _rooms_of(self, engine: int) -> list[_Room]:
        return self._rooms[engine * self._num_copies : (engine + 1) * self._num_copies]

    def _num_on(self, engine: int) -> int:
        return sum(room.num_trajectories for room in self._rooms_of(engine))

    def _ages_s(self, rooms: Sequence[_Room]) -> np.ndarray:
        return clock.now() - np.array([at for room in rooms for at in room.started_at.values()], dtype=float)


def _copy_share(kv_tokens: int, num_copies: int) -> float:
    """Return one copy's share of an engine's KV memory in tokens; infinite for 0 (unbounded)."""
    return kv_tokens // num_copies or math.inf
