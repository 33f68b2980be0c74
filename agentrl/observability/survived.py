"""What a run lost on its way and went on without, from its metrics."""

from collections.abc import Mapping
from pathlib import Path

from agentrl.observability.metrics_file import read_metrics, series

_TOLD = {
    "actor/restarts": ("restart of the models", "restarts of the models"),
    "rollout/engine_deaths": ("death of an engine", "deaths of engines"),
    "cluster/extra_role_deaths": ("death of an extra role", "deaths of extra roles"),
    "cluster/nodes_lost": ("node lost", "nodes lost"),
}
"""One and several of each metric."""
_OF_A_STEP = frozenset({"rollout/engine_deaths"})
"""The others count on through all commands of the run."""


def count_survived(metrics_path: Path) -> dict[str, int]:
    """Return what had befallen the run, through all of its commands, when its last row was written; by the metric's name."""
    rows = read_metrics(metrics_path)
    return {
        name: int(sum(values if name in _OF_A_STEP else values[-1:]))
        for name in _TOLD
        for values in [series(rows, name)[1]]
    }


def describe_survived(counts: Mapping[str, int]) -> str:
    """Return that for a person, as "1 restart of the models, 2 nodes lost"; nothing where there was none."""
    return ", ".join(f"{count} {_TOLD[name][count > 1]}" for name, count in counts.items() if count)
