"""Counters of a run that a command takes over from the commands before it."""

from pathlib import Path

from agentrl.cluster.run_history import RunHistory
from agentrl.observability.metrics_file import MetricsFile, count_survived


def test_a_death_before_the_first_row_of_a_command_is_added_to_those_of_the_commands_before_it(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    for step in (1, 2):
        history = RunHistory.of_run(path)  # of a new command
        history.num_restarts += 1
        history.num_nodes_lost += 2
        history.num_extra_role_deaths += 3
        MetricsFile(path).append(step, {name: float(count) for name, count in history.counts().items()})
    survived = {"actor/restarts": 2, "cluster/nodes_lost": 4, "cluster/extra_role_deaths": 6}
    assert count_survived(path) == survived | {"rollout/engine_deaths": 0}
    assert RunHistory.of_run(path).counts() == survived


def test_a_count_does_not_go_back_where_the_row_that_has_it_is_taken_back(tmp_path: Path):
    file = MetricsFile(tmp_path / "metrics.jsonl")
    file.append(1, {"actor/restarts": 0.0})
    file.append(2, {"actor/restarts": 1.0})
    history = RunHistory.of_run(tmp_path / "metrics.jsonl")
    file.take_back(after_step=1)
    assert history.num_restarts == 1
