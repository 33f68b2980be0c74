"""Which trajectory may start, and on which engine: a ledger of reserved KV memory.

It is driven by events alone: a trajectory enters, and gets a place at once or when others leave. What an engine says of its
memory is no help here: trajectories that wait for a tool look free to it, and come back.
"""

import asyncio
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentrl.agent_loop.response_lengths import ResponseLengths
from agentrl.agent_loop.waiting_line import Waiting, WaitingLine
from agentrl.errors import ConfigError

_MARGIN = 3.0
"""Standard deviations by which the memory must be larger than what is expected to be used of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Room for one trajectory on one engine, in tokens."""

    engine: int
    num_prompt_tokens: int
    max_tokens: int
    """Prompt and response at their longest."""
    number: int
    """How many got a place before."""


@dataclass(slots=True, kw_only=True)
class _Room:
    """What is given out of one engine."""

    kv_tokens: float
    num_trajectories: int = 0
    prompt_tokens: int = 0
    max_tokens: int = 0

    def add(self, place: Place) -> None:
        self.num_trajectories += 1
        self.prompt_tokens += place.num_prompt_tokens
        self.max_tokens += place.max_tokens

    def remove(self, place: Place) -> None:
        self.num_trajectories -= 1
        self.prompt_tokens -= place.num_prompt_tokens
        self.max_tokens -= place.max_tokens


class Admission:
    """Gives out places; a trajectory keeps its place until it `leave`s."""

    def __init__(
        self,
        kv_tokens: Sequence[int],
        *,
        max_trajectories: int,
        max_response_tokens: int,
        policy: Literal["reserve_max", "expected"],
    ) -> None:
        """Begin with empty engines.

        Args:
            kv_tokens: memory of each engine, in tokens; 0 where it has no bound of its own.
            max_trajectories: on one engine at once.
            max_response_tokens: of one trajectory, observations included.
            policy: `reserve_max` lets in what fits even if all get as long as they may; `expected`, what fits by the lengths
                of those that finished.
        """
        self._rooms = [_Room(kv_tokens=number or math.inf) for number in kv_tokens]
        self._max_trajectories = max_trajectories
        self._max_response_tokens = max_response_tokens
        self._may_expect = policy == "expected"
        self._lengths = ResponseLengths(max_response_tokens)
        self._order = itertools.count()
        self._line: WaitingLine[Place] = WaitingLine()

    def refuse_too_long(self, num_prompt_tokens: int) -> None:
        """Refuse what would wait for ever.

        Raises:
            ConfigError: no engine has the memory for such a trajectory at its longest.
        """
        needed, largest = num_prompt_tokens + self._max_response_tokens, max(room.kv_tokens for room in self._rooms)
        if needed > largest:
            raise ConfigError(
                f"rollout.max_response_tokens: with a prompt of {num_prompt_tokens} tokens a trajectory takes up to {needed}, "
                f"and the KV memory of an engine holds {largest:.0f}. Lower it, or give the engines more memory."
            )

    async def enter(self, prompt_id: str, *, num_prompt_tokens: int) -> Place:
        """Wait for a place."""
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        waiting = Waiting(
            prompt_id=prompt_id, order=next(self._order), num_prompt_tokens=num_prompt_tokens, place=future
        )
        self._line.push(waiting)
        self._admit()
        try:
            return await future
        except asyncio.CancelledError:
            self._line.remove(waiting)
            if future.done() and not future.cancelled():
                self.leave(future.result())  # it came at the same moment
            raise

    def leave(self, place: Place) -> None:
        """Give a place back."""
        self._rooms[place.engine].remove(place)
        self._admit()

    def learn(self, place: Place, prompt_id: str, *, num_response_tokens: int, duration_s: float) -> None:
        """Note what a trajectory that finished by itself took, before it leaves."""
        self._line.learn(prompt_id, duration_s)
        self._lengths.finish(place.number, num_response_tokens)

    def _admit(self) -> None:
        while self._line:
            waiting = self._line.first()
            place = self._find_place(waiting.num_prompt_tokens)
            if place is None:
                return
            self._line.remove(waiting)
            if not waiting.place.done():  # else it is being cancelled
                self._rooms[place.engine].add(place)
                self._lengths.start()
                waiting.place.set_result(place)

    def _find_place(self, num_prompt_tokens: int) -> Place | None:
        """Return a place on the engine with the fewest trajectories of those where one more fits."""
        max_tokens = num_prompt_tokens + self._max_response_tokens
        fitting = [
            (room.num_trajectories, room.max_tokens, index)
            for index, room in enumerate(self._rooms)
            if self._fits(room, num_prompt_tokens, max_tokens)
        ]
        if not fitting:
            return None
        return Place(
            engine=min(fitting)[2],
            num_prompt_tokens=num_prompt_tokens,
            max_tokens=max_tokens,
            number=self._lengths.num_started,
        )

    def _fits(self, room: _Room, num_prompt_tokens: int, max_tokens: int) -> bool:
        if room.num_trajectories >= self._max_trajectories:
            return False
        if room.max_tokens + max_tokens <= room.kv_tokens:
            return True
        held = self._lengths.held_tokens() if self._may_expect else None
        if held is None:
            return False
        mean, variance = held
        number = room.num_trajectories + 1
        expected = room.prompt_tokens + num_prompt_tokens + number * mean
        return expected + _MARGIN * math.sqrt(number * variance) <= room.kv_tokens
