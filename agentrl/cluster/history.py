"""What has befallen a run since its command began, through all of its starts and stages."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentrl.cluster.nodes import Node


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """Counts that outlive the processes of one stage."""

    gpus_of_rank: float | None = None
    """GPUs of a rank outside of pools, as the first start found them. After it, what the cluster lacks has left it."""
    num_restarts: int = 0
    """Of the models, after one of their processes died."""
    nodes: Mapping[str, "Node"] = field(default_factory=dict)
    """Those that were there at the last look, by their ids."""
    num_nodes_lost: int = 0
    """Nodes that left."""
    num_extra_role_deaths: int = 0
    """Processes of extra roles that died and were started again."""
