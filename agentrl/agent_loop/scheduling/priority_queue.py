"""Queue of trajectories that wait for a place: earliest step first, then longest expected duration first."""

import asyncio
import heapq
import math
from collections import deque
from dataclasses import dataclass

PromptKey = tuple[int, str]
"""Step and prompt id; a service has one step for each request, and requests may use the same ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Room for one trajectory on one engine, in tokens."""

    engine: int
    copy: int = 0
    """Number of the policy's copy within the engine."""
    num_prompt_tokens: int
    max_tokens: int
    """Prompt and response at their longest, in whole blocks."""
    number: int
    """Unique number of the place."""


@dataclass(slots=True, eq=False, kw_only=True)
class Waiting:
    """A trajectory that waits."""

    prompt_id: str
    step: int
    """Update that it is for; the actor waits for the earliest."""
    order: int
    num_prompt_tokens: int
    place: asyncio.Future[Place]

    @property
    def key(self) -> PromptKey:
        """Key of the trajectories of the same prompt."""
        return self.step, self.prompt_id


class WaitingLine:
    """Orders by the mean duration of finished trajectories of the same prompt; prompts without any come first.

    So long trajectories do not start last. If the first trajectory of each prompt enters before the second of any, the
    durations are known early.
    """

    def __init__(self) -> None:
        self._queues: dict[PromptKey, deque[Waiting]] = {}
        self._durations: dict[PromptKey, tuple[int, float]] = {}
        self._heap: list[tuple[int, float, int, PromptKey]] = []
        """Entries `(step, minus the expected seconds, order, key)`; outdated ones are dropped in `first`."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def push(self, waiting: Waiting) -> None:
        """Add a trajectory."""
        queue = self._queues.setdefault(waiting.key, deque())
        queue.append(waiting)
        if len(queue) == 1:
            self._rank(waiting.key)

    def first(self) -> Waiting:
        """Return the next trajectory without removing it.

        Raises:
            IndexError: none waits.
        """
        while True:
            _, rank, order, key = self._heap[0]
            queue = self._queues.get(key)
            if queue and (rank, order) == (-self._expected_s(key), queue[0].order):
                return queue[0]
            heapq.heappop(self._heap)

    def remove(self, waiting: Waiting) -> None:
        """Remove a trajectory, if it is still in the line."""
        queue = self._queues.get(waiting.key, deque())
        if waiting in queue:
            queue.remove(waiting)
            if queue:
                self._rank(waiting.key)
            else:
                del self._queues[waiting.key]
                self._durations.pop(waiting.key, None)  # none of the prompt's trajectories waits any more

    def learn(self, key: PromptKey, duration_s: float) -> None:
        """Record the duration of a prompt's trajectory, if others of the prompt wait."""
        if key in self._queues:
            count, total_s = self._durations.get(key, (0, 0.0))
            self._durations[key] = (count + 1, total_s + duration_s)
            self._rank(key)

    def _expected_s(self, key: PromptKey) -> float:
        count, total_s = self._durations.get(key, (0, 0.0))
        return total_s / count if count else math.inf

    def _rank(self, key: PromptKey) -> None:
        first = self._queues[key][0]
        heapq.heappush(self._heap, (first.step, -self._expected_s(key), first.order, key))
