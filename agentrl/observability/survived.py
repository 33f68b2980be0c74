"""What a run lost on its way and went on without, from its metrics."""

from itertools import pairwise
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
"""The others count on until the command ends."""


def count_survived(metrics_path: Path) -> dict[str, int]:
    """Return what befell the steps that count, by the metric's name, through all commands of the run."""
    rows = read_metrics(metrics_path)
    return {
        name: int(sum(values) if name in _OF_A_STEP else _rise(values))
        for name in _TOLD
        for values in [series(rows, name)[1]]
    }


def describe_survived(metrics_path: Path) -> str:
    """Return that for a person, as "1 restart of the models, 2 nodes lost"; nothing where there was none."""
    counts = count_survived(metrics_path)
    return ", ".join(f"{count} {_TOLD[name][count > 1]}" for name, count in counts.items() if count)


def _rise(counts: list[float]) -> float:
    """Return how far a count rose in all, which begins at zero again with each command."""
    return sum(now - before if now >= before else now for before, now in pairwise([0.0, *counts]))
