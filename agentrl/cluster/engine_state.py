"""State of an engine, and the protocol of the dispatcher that gives it work."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from agentrl import clock
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.errors import AgentRLError


class Dispatcher(Protocol):
    """Assigns work to the engines, by their numbers."""

    def close(self, engine: int) -> None:
        """Stop assigning work to an engine."""
        ...

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        """Assign work again, for a KV memory of `kv_tokens`: a new process may have less than the last one."""
        ...

    async def emptied(self, engine: int) -> None:
        """Return when nothing runs on an engine."""
        ...

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` in everything that waits for an engine, now and later: no engine will come back."""
        ...

    def recover(self) -> None:
        """Undo `fail`: engines will be reopened."""
        ...


@dataclass(slots=True, eq=False)
class EngineState:
    """One engine, through all of its processes."""

    index: int
    handle: WorkerHandle
    is_given_up: bool = False
    recovery: asyncio.Task[None] | None = None
    """Runs while the engine is closed."""
    is_new: bool = False
    """Closed until the next push of weights."""
    drains: bool = False
    """Closed for new requests; running ones go on."""
    num_deaths: int = 0
    """Consecutive deaths."""
    num_starts: int = 1
    """Processes so far."""
    start_done: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared while its process starts."""
    sleeps: bool = False
    """True until it has new weights."""
    opened_at: float = field(default_factory=clock.now)
    """Infinite while it is dead."""

    def __post_init__(self) -> None:
        self.start_done.set()

    @property
    def is_starting(self) -> bool:
        """True while a new process is being prepared."""
        return not self.is_given_up and bool(self.recovery or self.is_new)

    @property
    def name(self) -> str:
        """Name of the current process, unique in the run."""
        return f"engine {self.index}" + (f", started {self.num_starts} times" if self.num_starts > 1 else "")
