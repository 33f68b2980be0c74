"""What has befallen a run through all of its commands, and what is known of its cluster since this one began."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.observability.survived import count_survived

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

    @classmethod
    def of_run(cls, metrics_path: Path) -> "RunHistory":
        """Return that with which a command begins: the counts of the last row, also where that is about to be taken back."""
        counts = count_survived(metrics_path)
        return cls(
            num_restarts=counts["actor/restarts"],
            num_nodes_lost=counts["cluster/nodes_lost"],
            num_extra_role_deaths=counts["cluster/extra_role_deaths"],
        )

    def counts(self) -> dict[str, int]:
        """Return the counts by the names of their metrics."""
        return {
            "actor/restarts": self.num_restarts,
            "cluster/nodes_lost": self.num_nodes_lost,
            "cluster/extra_role_deaths": self.num_extra_role_deaths,
        }
