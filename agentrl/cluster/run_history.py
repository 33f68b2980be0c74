"""Failure counters of a run, kept across restarts, and the cluster as this command has seen it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from agentrl.observability.metrics_file import count_survived


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as Ray sees it."""

    address: str
    has: Mapping[str, float]
    """Processors and GPUs (`{"CPU": 8.0, "GPU": 8.0}`)."""
    free: Mapping[str, float]
    """The part of them that is not reserved."""

    def __str__(self) -> str:
        return f"{self.address} (has {format_resources(self.has)}; free {format_resources(self.free)})"


def format_resources(amounts: Mapping[str, float]) -> str:
    """Return amounts of resources as `CPU 8, GPU 1`; `nothing` without any."""
    return ", ".join(f"{kind} {amount:g}" for kind, amount in amounts.items() if amount) or "nothing"


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """Counts that outlive the processes of one stage."""

    gpus_of_rank: float | None = None
    """GPUs of a rank outside of pools; None before the first start."""
    num_restarts: int = 0
    """Restarts of the models after one of their processes died."""
    nodes: Mapping[str, Node] = field(default_factory=dict)
    """Nodes at the last look, keyed by id."""
    num_nodes_lost: int = 0
    """Nodes that left."""
    num_extra_role_deaths: int = 0
    """Deaths of workers of extra roles."""

    @classmethod
    def of_run(cls, metrics_path: Path) -> "RunHistory":
        """Return the counts of the last row of `metrics.jsonl`, even if the run resumes before that row."""
        counts = count_survived(metrics_path)
        return cls(
            num_restarts=counts["actor/restarts"],
            num_nodes_lost=counts["cluster/nodes_lost"],
            num_extra_role_deaths=counts["cluster/extra_role_deaths"],
        )

    def counts(self) -> dict[str, int]:
        """Return the counts, keyed by metric."""
        return {
            "actor/restarts": self.num_restarts,
            "cluster/nodes_lost": self.num_nodes_lost,
            "cluster/extra_role_deaths": self.num_extra_role_deaths,
        }
