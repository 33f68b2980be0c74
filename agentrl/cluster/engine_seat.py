"""What an engine is to those who keep it running, and to those who give it work."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from agentrl import clock
from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import AgentRLError


class Ledger(Protocol):
    """Who gives work to the engines."""

    def close(self, engine: int) -> None:
        """Give engine number `engine` nothing new."""
        ...

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        """Give it work again, for a memory of `kv_tokens`: its new process may have found less than the one before."""
        ...

    async def emptied(self, engine: int) -> None:
        """Return when nothing runs on engine number `engine`."""
        ...

    def fail(self, error: AgentRLError) -> None:
        """Raise `error` for everybody who waits for an engine, now and later: there is none, and there will be none."""
        ...

    def recover(self) -> None:
        """Take `fail` back: there will be engines again, each as soon as it is reopened."""
        ...


@dataclass(slots=True, eq=False)
class Seat:
    """One engine, whichever process it is in."""

    index: int
    handle: WorkerHandle
    is_given_up: bool = False
    recovery: asyncio.Task[None] | None = None
    """Runs while the engine is closed."""
    is_new: bool = False
    """It is closed until it has been given weights."""
    drains: bool = False
    """It is closed, and goes on with what it has."""
    num_deaths: int = 0
    """Each soon after the one before."""
    num_starts: int = 1
    """Processes that it has been in."""
    start_over: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while its process starts."""
    sleeps: bool = False
    """Until it has new weights."""
    opened_at: float = field(default_factory=clock.now)
    """Infinite while it is dead."""

    def __post_init__(self) -> None:
        self.start_over.set()

    @property
    def is_to_come(self) -> bool:
        """Whether it has no process at work, and is to have one."""
        return not self.is_given_up and bool(self.recovery or self.is_new)

    @property
    def name(self) -> str:
        """No two processes have the same."""
        return f"engine {self.index}" + (f", started {self.num_starts} times" if self.num_starts > 1 else "")
