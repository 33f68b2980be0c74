"""The runner end to end; what the schedule must be is checked against sums over what was played."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError, ToolError
from agentrl.runners.simulate import Simulation, simulate
from agentrl.simulation.virtual_time import run_in_virtual_time

ROOT = Path(__file__).parents[2]
SMALL = ("rollout.prompts_per_step=8", "rollout.samples_per_prompt=16", "rollout.num_engines=2")


def play(*overrides: str) -> Simulation:
    return run_in_virtual_time(
        simulate(load_run_config("configs/simulate.yaml", [*SMALL, *overrides], purpose=Purpose.SIMULATION))
    )


@pytest.mark.slow
def test_every_trajectory_is_played_and_the_same_config_plays_the_same():
    first, second = play(), play()
    assert len(first.summaries) == 128
    assert first.makespan_s == second.makespan_s
    assert [summary.num_tokens for summary in first.summaries] == [summary.num_tokens for summary in second.summaries]


def test_the_schedule_changes_the_time_and_not_what_is_played():
    ample, narrow = play(), play("rollout.max_concurrent_trajectories=4")
    assert [s.num_tokens for s in ample.summaries] == [s.num_tokens for s in narrow.summaries]
    assert narrow.makespan_s > 2 * ample.makespan_s


def test_where_all_fit_nothing_takes_longer_than_the_longest_trajectory():
    simulation = play("simulated.kv_tokens=10000000")
    assert simulation.makespan_s == pytest.approx(max(s.wall_time_s for s in simulation.summaries), rel=0.01)


@pytest.mark.slow
def test_reserving_for_the_longest_computes_nothing_again_and_letting_all_in_does():
    scarce = ("simulated.kv_tokens=20000", "rollout.samples_per_prompt=32")
    reserved, crowded = play(*scarce), play(*scarce, "rollout.max_response_tokens=8000", "rollout.admission=expected")
    assert reserved.counts.recomputed == 0
    computed = crowded.counts.generated + crowded.counts.prefilled
    assert crowded.counts.recomputed <= 0.02 * computed
    assert crowded.makespan_s < reserved.makespan_s


def test_what_waits_in_real_time_is_refused():
    with pytest.raises(ConfigError, match="waits in real time"):
        play("reward.class_name=agentrl.rewards.math_answer.MathAnswerReward")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("simulated.min_turns=11", "`simulated` has `min_turns` 11, more than `max_turns` \\(10\\)"),
        ("reward.config={accuracy: 1.5}", "`accuracy` is 1.5, and must be at most 1"),
    ],
)
def test_what_no_engine_could_do_is_refused_before_it_is_played(override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        play(override)


def test_a_simulated_tool_with_a_negative_number_of_slots_is_refused(tmp_path: Path):
    path = tmp_path / "tools.yaml"
    path.write_text("tools:\n  - class_name: agentrl.simulation.tool.SimulatedTool\n    config: {num_slots: -1}\n")
    with pytest.raises(ToolError, match="`num_slots` is -1"):
        play(f"tool_config_path={path}")


@pytest.mark.slow
def test_the_command_prints_the_figures():
    command = [sys.executable, "-m", "agentrl.runners.simulate", "configs/simulate.yaml", *SMALL]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    for row in ("128 (", "time for all of them", "tokens computed again", "ms"):
        assert row in done.stdout
    assert "Ray" not in done.stderr  # which needs seconds, and nothing here needs it


def test_a_mistake_is_one_line_and_exit_code_2():
    command = [sys.executable, "-m", "agentrl.runners.simulate", "configs/simulate.yaml", "rollout.num_engines=0"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "rollout.num_engines" in done.stderr
