"""Concurrency follows the judge's queue: alone, and with the real loop and a judge of few slots, in virtual time."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from agentrl.agent_loop.scheduling import concurrency_limit
from agentrl.agent_loop.scheduling.concurrency_limit import JudgePressure
from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.runners.simulate import Simulation, simulate
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.timing import TimeSplit
from agentrl.types import Failure, FailureClass, TrajectorySummary
from tests.summaries import short_summary

QUIET = short_summary(num_turns=3, num_tool_calls=2, wall_time_s=1.0)


def waited(seconds_per_call: float) -> TrajectorySummary:
    return replace(QUIET, times=TimeSplit(judge_queue_s=2 * seconds_per_call))


def test_there_is_no_limit_until_a_wait_is_too_long():
    pressure = JudgePressure(least=2)
    pressure.learn(waited(9), number=0, num_running=100, num_started=100)
    assert pressure.limit == math.inf
    pressure.learn(waited(12.5), number=1, num_running=100, num_started=100)
    assert pressure.limit == 80, "by the share that the wait is too long"


def test_only_those_that_started_under_a_limit_say_whether_it_is_low_enough():
    pressure = JudgePressure(least=2)
    for number in range(50):
        pressure.learn(waited(60), number=number, num_running=100 - number, num_started=100)
    assert pressure.limit == 50, "half, once"
    pressure.learn(waited(60), number=100, num_running=50, num_started=101)
    assert pressure.limit == 25


def test_the_limit_rises_by_one_where_the_wait_is_short_and_stays_where_it_is_neither():
    pressure = JudgePressure(least=2)
    pressure.learn(waited(20), number=0, num_running=8, num_started=8)
    pressure.learn(waited(7), number=9, num_running=4, num_started=12)
    assert pressure.limit == 4
    pressure.learn(waited(5), number=9, num_running=4, num_started=12)
    assert pressure.limit == 5


def test_as_many_as_there_are_engines_always_run():
    pressure = JudgePressure(least=3)
    for number in range(0, 1000, 10):
        pressure.learn(waited(1000), number=number, num_running=4, num_started=number + 1)
    assert pressure.limit == 3


def test_a_judge_without_an_answer_is_one_whose_queue_is_too_long():
    pressure = JudgePressure(least=1)
    failed = replace(QUIET, failures=(Failure(failure_class=FailureClass.JUDGE, message="no verdict in 30 s"),))
    pressure.learn(failed, number=0, num_running=8, num_started=8)
    assert pressure.limit == 4


def test_a_trajectory_without_a_call_says_nothing():
    pressure = JudgePressure(least=1)
    pressure.learn(waited(20), number=0, num_running=8, num_started=8)
    pressure.learn(replace(QUIET, num_tool_calls=0), number=9, num_running=8, num_started=8)
    assert pressure.limit == 4


def test_what_the_reward_waits_for_the_judge_counts_as_a_call():
    pressure = JudgePressure(least=1)
    silent = replace(QUIET, num_tool_calls=0)
    pressure.learn(replace(silent, times=TimeSplit(reward_queue_s=20)), number=0, num_running=8, num_started=8)
    assert pressure.limit == 4
    pressure.learn(replace(silent, times=TimeSplit(reward_queue_s=4)), number=9, num_running=4, num_started=12)
    assert pressure.limit == 5
    times = TimeSplit(judge_queue_s=2 * 6, reward_queue_s=36)
    pressure.learn(replace(QUIET, times=times), number=12, num_running=4, num_started=16)
    assert pressure.limit == 2, "16 s per call of three"


def test_a_limit_ends_where_no_trajectory_calls_a_tool_any_more():
    pressure = JudgePressure(least=1)
    failed = replace(QUIET, num_tool_calls=0, failures=(Failure(failure_class=FailureClass.JUDGE, message="away"),))
    pressure.learn(failed, number=0, num_running=8, num_started=8)
    for number in range(8, 12):
        pressure.learn(replace(QUIET, num_tool_calls=0), number=number, num_running=4, num_started=12)
    assert pressure.limit == 4, "as many as may run at once say nothing yet"
    for number in range(12, 22):
        pressure.learn(replace(QUIET, num_tool_calls=0), number=number, num_running=4, num_started=22)
    assert pressure.limit == 14


def test_trajectories_without_a_call_between_others_do_not_raise_the_limit():
    pressure = JudgePressure(least=1)
    pressure.learn(waited(20), number=0, num_running=8, num_started=8)
    for number in range(8, 88, 4):
        pressure.learn(waited(7), number=number, num_running=4, num_started=88)
        for silent in range(1, 4):
            pressure.learn(replace(QUIET, num_tool_calls=0), number=number + silent, num_running=4, num_started=88)
    assert pressure.limit == 4


@pytest.fixture
def busy_judge(tmp_path: Path) -> str:
    path = tmp_path / "tools.yaml"
    path.write_text(
        "tools:\n  - class_name: agentrl.simulation.tool.SimulatedTool\n"
        "    config: {min_time_s: 1.0, max_time_s: 1.0, num_slots: 2}\n"
    )
    return f"tool_config_path={path}"


def play(*overrides: str) -> Simulation:
    """Play 160 trajectories, 64 at once, whose tool answers two calls a second."""
    sizes = ("rollout.prompts_per_step=10", "rollout.samples_per_prompt=16", "rollout.num_engines=1")
    long = (
        "simulated.kv_tokens=1000000",
        "rollout.tool_timeout_s=3600",
        "rollout.max_concurrent_trajectories=64",
    )
    loaded = load_run_config("configs/simulate.yaml", [*sizes, *long, *overrides], purpose=Purpose.SIMULATION)
    return run_in_virtual_time(simulate(loaded))


def late_wait_s(simulation: Simulation) -> float:
    """Return the mean wait of a call in the second half of the trajectories."""
    late = sorted(simulation.summaries, key=lambda summary: summary.finished_at)[80:]
    return sum(summary.times.judge_queue_s for summary in late) / sum(summary.num_tool_calls for summary in late)


def test_the_wait_for_a_busy_judge_becomes_short_and_the_step_takes_no_longer(
    busy_judge: str, monkeypatch: pytest.MonkeyPatch
):
    limited = play(busy_judge)
    monkeypatch.setattr(concurrency_limit, "MAX_QUEUE_S", math.inf)
    free = play(busy_judge)
    assert late_wait_s(free) > 18
    assert late_wait_s(limited) < 12
    assert limited.makespan_s < 1.05 * free.makespan_s
