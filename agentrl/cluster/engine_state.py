"""State of an engine, and the protocol of the dispatcher that gives it work."""

import asyncio
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from agentrl import clock
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.errors import AgentRLError
from agentrl.weight_sync.base import WeightSource


class Dispatcher(Protocol):
    """Assigns work to the engines, by their numbers."""

    def close(self, engine: int) -> None:
        """Stop assigning work to an engine."""

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        """Assign work again, for a KV memory of `kv_tokens`: a new process may have less than the last one."""

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` in everything that waits for an engine, now and later: no engine will come back."""

    def recover(self) -> None:
        """Undo `fail`: engines will be reopened."""


class EngineState(StrEnum):
    """`OPEN -> RECOVERING -> WAITING -> OPEN`, and `GIVEN_UP` at last; `EngineFleet._enter` changes it."""

    OPEN = "open"
    """Takes work."""
    RECOVERING = "recovering"
    """Is asked for an answer, or replaced by a new process."""
    WAITING = "waiting"
    """Ready; the next weights open it."""
    GIVEN_UP = "given up"

    @property
    def takes_weights(self) -> bool:
        """True for a process that is ready."""
        return self in (EngineState.OPEN, EngineState.WAITING)


@dataclass(slots=True, eq=False)
class FleetEngine:
    """One engine, through all of its processes."""

    index: int
    handle: WorkerHandle
    state: EngineState = EngineState.OPEN
    recovery: asyncio.Task[None] | None = None
    """The last one."""
    weights: WeightSource | None = None
    """Weights that the process has."""
    is_asleep: bool = False
    """True from `sleep` until it has new weights."""
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a new process takes its memory."""
    num_starts: int = 1
    num_deaths: int = 0
    """Consecutive deaths."""
    opened_at: float = field(default_factory=clock.now)
    """Infinite while it is dead."""

    @property
    def name(self) -> str:
        """Name of the current process, unique in the run."""
        return f"engine {self.index}" + (f", started {self.num_starts} times" if self.num_starts > 1 else "")
