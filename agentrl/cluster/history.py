"""What has befallen a run since its command began, through all of its starts and stages."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """Counts that outlive the processes of one stage."""

    gpus_of_rank: float | None = None
    """GPUs of a rank outside of pools, as the first start found them. After it, what the cluster lacks has left it."""
    num_restarts: int = 0
    """Of the models, after one of their processes died."""
    num_nodes_lost: int = 0
    """Nodes that left."""
    num_extra_role_deaths: int = 0
    """Processes of extra roles that died and were started again."""
