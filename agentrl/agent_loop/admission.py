"""Which trajectory may start, and on which engine: a ledger of reserved KV memory.

An engine may have several copies of the policy, each with a memory of its own: a trajectory fits one of them, or none.

It is driven by events alone: a trajectory enters, and gets a place at once or when others leave. What an engine says of its
memory is no help here: trajectories that wait for a tool look free to it, and come back.
"""

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from agentrl import clock
from agentrl.agent_loop.judge_pressure import JudgePressure
from agentrl.agent_loop.kv_forecast import KvForecast
from agentrl.agent_loop.waiting_line import Waiting, WaitingLine
from agentrl.errors import AgentRLError, ConfigError
from agentrl.types import TrajectorySummary

_FORECAST_SHARE = 0.9
"""Of an engine's memory that the forecast may fill. What a memory that overflows throws out is computed again, which slows all
others down, so that they too hold their memory longer: it does not recover by itself.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Room for one trajectory on one engine, in tokens."""

    engine: int
    copy: int = 0
    """Which of the copies of the policy in the engine."""
    num_prompt_tokens: int
    max_tokens: int
    """Prompt and response at their longest, in whole blocks."""
    number: int
    """Tells it from all others."""


@dataclass(slots=True, kw_only=True)
class _Room:
    """What is given out of one copy of the policy in one engine."""

    kv_tokens: float
    is_open: bool = True
    started_at: dict[int, float] = field(default_factory=dict)
    """Of each that has a place, by its number."""
    is_empty: asyncio.Event = field(default_factory=asyncio.Event)
    prompt_tokens: int = 0
    max_tokens: int = 0

    @property
    def num_trajectories(self) -> int:
        return len(self.started_at)

    def __post_init__(self) -> None:
        self.is_empty.set()

    def add(self, place: Place) -> None:
        self.is_empty.clear()
        self.started_at[place.number] = clock.now()
        self.prompt_tokens += place.num_prompt_tokens
        self.max_tokens += place.max_tokens

    def remove(self, place: Place) -> None:
        del self.started_at[place.number]
        self.prompt_tokens -= place.num_prompt_tokens
        self.max_tokens -= place.max_tokens
        if not self.started_at:
            self.is_empty.set()


class Admission:
    """Gives out places; a trajectory keeps its place until it `leave`s."""

    def __init__(
        self,
        kv_tokens: Sequence[int],
        *,
        max_trajectories: int,
        max_response_tokens: int,
        policy: Literal["reserve_max", "expected"],
        max_judge_queue_s: float,
        num_copies: int = 1,
        block_tokens: int = 1,
    ) -> None:
        """Begin with empty engines.

        Args:
            kv_tokens: memory of each engine, of all its copies together, in tokens; 0 where it has no bound of its own.
            max_trajectories: on one engine at once.
            max_response_tokens: of one trajectory, observations included.
            policy: `reserve_max` lets in what fits even if all get as long as they may; `expected`, what will fit at all times
                to come if they go on as those that finished did.
            max_judge_queue_s: wait per call in the judge's queue above which fewer run at once; 0: no such bound.
            num_copies: of the policy in each engine, which have equal shares of its memory.
            block_tokens: what a trajectory holds is a multiple of so many.
        """
        self._rooms = [_Room(kv_tokens=_of_copy(number, num_copies)) for number in kv_tokens for _ in range(num_copies)]
        self._num_copies = num_copies
        self._longest_prompt_tokens = 0
        """Of those that `refuse_too_long` was asked about."""
        self._max_trajectories = max_trajectories
        self._max_response_tokens = max_response_tokens
        self._block_tokens = block_tokens
        self._may_expect = policy == "expected"
        self._forecast = KvForecast(max_response_tokens)
        self._pressure = JudgePressure(max_judge_queue_s, least=len(kv_tokens))
        self._order, self._num_started = itertools.count(), 0
        self._line: WaitingLine[Place] = WaitingLine()
        self._failure: AgentRLError | None = None

    def refuse_too_long(self, num_prompt_tokens: int) -> None:
        """Refuse what would wait for ever.

        Raises:
            ConfigError: no copy in any engine has the memory for such a trajectory at its longest.
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
        """Wait for a place; who is needed for an earlier `step` goes first.

        Raises:
            AgentRLError: there are no engines any more (`fail`).
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
                self.leave(future.result())  # it came at the same moment
            else:
                self._admit()  # whoever was behind it may need less
            raise

    def leave(self, place: Place) -> None:
        """Give a place back."""
        self._room(place).remove(place)
        self._admit()

    def close(self, engine: int) -> None:
        """Let nobody in there, until `reopen`; those who are there keep their places."""
        for room in self._rooms_of(engine):
            room.is_open = False

    async def emptied(self, engine: int) -> None:
        """Return when nobody has a place there; it is closed."""
        for room in self._rooms_of(engine):
            await room.is_empty.wait()

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        """Let trajectories in there again.

        Where the longest prompt then fits nowhere any more, everybody is told (`fail`): it would wait for ever.

        Args:
            engine: its number.
            kv_tokens: memory of all its copies together, as it is now; 0 where it has no bound of its own.
        """
        for room in self._rooms_of(engine):
            room.is_open, room.kv_tokens = True, _of_copy(kv_tokens, self._num_copies)
        try:
            self.refuse_too_long(self._longest_prompt_tokens)
        except ConfigError as error:
            self.fail(error)
        self._admit()

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` for everybody who waits, now and later."""
        self._failure = error
        while self._line:
            waiting = self._line.first()
            self._line.remove(waiting)
            if not waiting.place.done():
                waiting.place.set_exception(error)

    def recover(self) -> None:
        """Take `fail` back: there will be engines again."""
        self._failure = None

    @property
    def num_running(self) -> int:
        """Trajectories that have a place, on all engines."""
        return sum(room.num_trajectories for room in self._rooms)

    @property
    def limit(self) -> float:
        """Trajectories that may have one at once, for the judge's sake."""
        return self._pressure.limit

    def heed_judge(self, place: Place, summary: TrajectorySummary) -> None:
        """Note how long a trajectory waited for the judge, before it leaves."""
        self._pressure.learn(summary, number=place.number, num_running=self.num_running, num_started=self._num_started)

    def learn(self, place: Place, prompt_id: str, *, num_response_tokens: int, duration_s: float) -> None:
        """Note what a trajectory that finished by itself took, before it leaves."""
        self._line.learn(prompt_id, duration_s)
        if self._may_expect:
            self._forecast.learn(num_response_tokens, duration_s)

    def _admit(self) -> None:
        while self._line and self.num_running < self._pressure.limit:
            waiting = self._line.first()
            place = self._find_place(waiting.num_prompt_tokens)
            if place is None:
                return
            self._line.remove(waiting)
            if not waiting.place.done():  # else it is being cancelled
                self._room(place).add(place)
                self._num_started += 1
                waiting.place.set_result(place)

    def _find_place(self, num_prompt_tokens: int) -> Place | None:
        """Return a place in the room with the fewest trajectories of those where one more fits."""
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
        """Return what a trajectory with such a prompt holds at its longest."""
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


def _of_copy(kv_tokens: int, num_copies: int) -> float:
    """Return the share of one copy of an engine's memory in tokens; no bound where it says 0."""
    return kv_tokens // num_copies or math.inf
