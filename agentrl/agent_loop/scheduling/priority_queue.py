"""Queue of trajectories that wait for a place: earliest step first, then longest expected duration first."""

import asyncio
import heapq
import math
from collections import deque
from dataclasses import dataclass


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


class WaitingLine:
    """Orders by the mean duration of finished trajectories of the same prompt; prompts without any come first.

    So long trajectories do not start last. If the first trajectory of each prompt enters before the second of any, the
    durations are known early.
    """

    def __init__(self) -> None:
        self._queues: dict[str, deque[Waiting]] = {}
        self._durations: dict[str, tuple[int, float]] = {}
        self._heap: list[tuple[int, float, int, str]] = []
        """Entries `(step, minus the expected seconds, order, prompt id)`; outdated ones are dropped in `first`."""

    def __bool__(self) -> bool:
        return bool(self._queues)

    def push(self, waiting: Waiting) -> None:
        """Add a trajectory."""
        queue = self._queues.setdefault(waiting.prompt_id, deque())
        queue.append(waiting)
        if len(queue) == 1:
            self._rank(waiting.prompt_id)

    def first(self) -> Waiting:
        """Return the next trajectory without removing it.

        Raises:
            IndexError: none waits.
        """
        while True:
            _, key, order, prompt_id = self._heap[0]
            queue = self._queues.get(prompt_id)
            if queue and (key, order) == (-self._expected_s(prompt_id), queue[0].order):
                return queue[0]
            heapq.heappop(self._heap)

    def remove(self, waiting: Waiting) -> None:
        """Remove a trajectory, if it is still in the line."""
        queue = self._queues.get(waiting.prompt_id, deque())
        if waiting in queue:
            queue.remove(waiting)
            if queue:
                self._rank(waiting.prompt_id)
            else:
                del self._queues[waiting.prompt_id]
                self._durations.pop(waiting.prompt_id, None)  # none of the prompt's trajectories waits any more

    def learn(self, prompt_id: str, duration_s: float) -> None:
        """Record the duration of a prompt's trajectory, if others of the prompt wait."""
        if prompt_id in self._queues:
            count, total_s = self._durations.get(prompt_id, (0, 0.0))
            self._durations[prompt_id] = (count + 1, total_s + duration_s)
            self._rank(prompt_id)

    def _expected_s(self, prompt_id: str) -> float:
        count, total_s = self._durations.get(prompt_id, (0, 0.0))
        return total_s / count if count else math.inf

    def _rank(self, prompt_id: str) -> None:
        first = self._queues[prompt_id][0]
        heapq.heappush(self._heap, (first.step, -self._expected_s(prompt_id), first.order, prompt_id))
