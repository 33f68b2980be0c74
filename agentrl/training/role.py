"""Interface of a model worker's components: actor, reference, critic, reward model.

A process may have several: `actor_ref` is an actor and a reference in each process. Its components share one membership in the
process group, so all ranks must call them in the same order.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentrl.training.parallel import Parallel

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleContext:
    """Environment of a component: rank, number of ranks, device and collectives."""

    parallel: Parallel


class Role(Protocol):
    """A component; every rank must call its methods in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        """Take the settings, without heavy work; `role` is the component's role (`actor`)."""
        ...

    def setup(self, context: RoleContext) -> None:
        """Load models onto the device, sharded over the ranks."""
        ...
