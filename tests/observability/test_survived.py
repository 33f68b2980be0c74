"""Failures that a run survived, from its metrics."""

from pathlib import Path

from agentrl.observability.metrics_file import MetricsFile, count_survived, describe_survived

NOTHING = {"actor/restarts": 0, "rollout/engine_deaths": 0, "cluster/extra_role_deaths": 0, "cluster/nodes_lost": 0}


def metrics_with(path: Path, **columns: list[float]) -> Path:
    file = MetricsFile(path / "metrics.jsonl")
    file.append(0, {"validation/accuracy": 0.5})
    for step, values in enumerate(zip(*columns.values(), strict=True), start=1):
        file.append(step, {name.replace("__", "/"): value for name, value in zip(columns, values, strict=True)})
    return path / "metrics.jsonl"


def test_counts_of_a_step_are_added_up(tmp_path: Path):
    path = metrics_with(tmp_path, rollout__engine_deaths=[0, 2, 0, 1])
    assert count_survived(path) == NOTHING | {"rollout/engine_deaths": 3}
    assert describe_survived(count_survived(path)) == "3 deaths of engines"


def test_of_counts_that_go_on_through_the_run_the_last_one_is_told(tmp_path: Path):
    path = metrics_with(tmp_path, actor__restarts=[0, 1, 1, 2, 2, 3], cluster__nodes_lost=[0, 0, 0, 1, 1, 1])
    assert count_survived(path) == NOTHING | {"actor/restarts": 3, "cluster/nodes_lost": 1}
    assert describe_survived(count_survived(path)) == "3 restarts of the models, 1 node lost"


def test_a_run_that_lost_nothing_has_nothing_to_tell(tmp_path: Path):
    path = metrics_with(tmp_path, actor__restarts=[0, 0])
    assert count_survived(path) == NOTHING
    assert describe_survived(count_survived(path)) == ""


def test_a_run_that_begins_has_lost_nothing(tmp_path: Path):
    assert count_survived(tmp_path / "metrics.jsonl") == NOTHING
