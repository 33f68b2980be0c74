"""`metrics.jsonl`: one JSON object per step, for scripts, pictures and the dashboard.

    {"step": 0, "validation/accuracy": 0.48}
    {"step": 1, "rollout/reward_mean": 0.51, "rollout/tool_success_rate": null, "actor/grad_norm": 0.7, ...}

`step` counts actor updates. null is a value that does not exist, such as the success rate of no calls.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from agentrl.observability.json_lines import append_json_lines, keep_json_lines, read_json_lines

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


MetricsRow = dict[str, float | None]


class MetricsFile:
    """Appends steps, and removes those after the last checkpoint of a killed run."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the line of `step` to the disk."""
        append_json_lines(self._path, [{"step": step} | {name: float(value) for name, value in metrics.items()}])

    def take_back(self, *, after_step: int) -> None:
        """Remove the lines after step `after_step`, atomically; -1 removes all."""
        keep_json_lines(self._path, lambda row: row["step"] <= after_step)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Return the rows of a `metrics.jsonl` in order; a torn last line is skipped.

    Raises:
        ValueError: a line is damaged; the message names the file and the line.
    """
    return list(read_json_lines(path))


def series(rows: Sequence[MetricsRow], name: str) -> tuple[list[int], list[float]]:
    """Return the steps at which metric `name` has a value, and the values."""
    steps: list[int] = []
    values: list[float] = []
    for row in rows:
        step, value = row["step"], row.get(name)
        if step is not None and value is not None:
            steps.append(int(step))
            values.append(value)
    return steps, values
