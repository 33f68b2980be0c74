"""What a component of a model worker is: actor, reference, critic, reward model, each the same class alone or beside others.

A process plays one role or several: `actor_ref` is an actor and a reference in each process. All components of a process
share one membership in the process group, so all of them are called in step over the ranks.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentrl.training.parallel import Parallel

if TYPE_CHECKING:
    from agentrl.config.schema import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """Where a component finds itself: rank, number of ranks, device and collectives are those of `parallel`."""

    parallel: Parallel


class Role(Protocol):
    """A component; its other methods are its own, and every rank calls them in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        """Take the settings and do nothing heavy; `role` is the one that it plays (`actor`)."""
        ...

    def setup(self, context: RoleContext) -> None:
        """Load models onto the device, sharded over the ranks."""
        ...
