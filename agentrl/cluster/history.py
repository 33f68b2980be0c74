"""What has befallen a run since its command began, through all of its starts and stages."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class RunHistory:
    """Counts that outlive the processes of one stage."""

    was_placed: bool = False
    """Whether a cluster has held all of the run: what it lacks later has left it, and is waited for."""
    num_restarts: int = 0
    """Of the models, after one of their processes died."""
    num_nodes_lost: int = 0
    """Nodes that left."""
