"""The worked example of an environment learns, through the real command."""

from pathlib import Path

import pytest

from agentrl.trajectories.store import read_trajectories
from tests.runners.run_process import finish_run, metrics

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def test_the_policy_learns_to_guess_by_what_the_environment_says(tmp_path: Path):
    """The mean reward is to rise by 0.15 in 16 updates; it rose from 0.00 to 0.31, with a standard error of 0.03 each."""
    run_dir = tmp_path / "run"
    finish_run(run_dir, "run.num_steps=16", "validation.every_steps=16", config="examples/guess_number/run.yaml")
    rewards = [value for row in metrics(run_dir) if (value := row.get("validation/accuracy")) is not None]
    assert len(rewards) == 2
    assert rewards[-1] > rewards[0] + 0.15
    trajectories = list(read_trajectories(run_dir / "trajectories" / "step_000016.atr"))
    assert max(len(trajectory.turns) for trajectory in trajectories) == 5
    for trajectory in trajectories:
        said = {turn.observation for turn in trajectory.turns[:-1]}
        assert said <= {"higher", "lower", "a number, please"}
        assert trajectory.reward == pytest.approx(sum(turn.environment_reward or 0 for turn in trajectory.turns))
