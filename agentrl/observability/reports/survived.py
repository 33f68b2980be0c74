"""Failures that a run survived, from its metrics."""

from collections.abc import Mapping
from pathlib import Path

from agentrl.observability.metrics_file import read_metrics, series

_NOUNS = {
    "actor/restarts": ("restart of the models", "restarts of the models"),
    "rollout/engine_deaths": ("death of an engine", "deaths of engines"),
    "cluster/extra_role_deaths": ("death of an extra role", "deaths of extra roles"),
    "cluster/nodes_lost": ("node lost", "nodes lost"),
}
"""Singular and plural for each metric."""
_OF_A_STEP = frozenset({"rollout/engine_deaths"})
"""Metrics that count per step; the others count through all commands of the run."""


def count_survived(metrics_path: Path) -> dict[str, int]:
    """Return the failure counts of the run, through all of its commands, keyed by metric."""
    rows = read_metrics(metrics_path)
    return {
        name: int(sum(values if name in _OF_A_STEP else values[-1:]))
        for name in _NOUNS
        for values in [series(rows, name)[1]]
    }


def describe_survived(counts: Mapping[str, int]) -> str:
    """Return the counts as text: "1 restart of the models, 2 nodes lost"; empty if all are 0."""
    return ", ".join(f"{count} {_NOUNS[name][count > 1]}" for name, count in counts.items() if count)
