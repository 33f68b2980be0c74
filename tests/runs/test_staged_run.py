"""A real run of two stages: each with its own processes, the second begun with the checkpoint of the first."""

import json
import signal
from pathlib import Path

import pytest

from agentrl.trajectories.store import read_trajectories
from agentrl.types import Termination
from tests.runners.run_process import SMALL, finish_run, metrics, running, wait_until

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]

STAGES = (
    "stages=[{num_steps: 2}, {num_steps: 2, max_turns: 2, max_pass_rate: 0.9, reset_optimiser: true,"
    " update_reference: true}]"
)


def words(folder: Path) -> list[str]:
    penalty = ["algorithm.kl_coefficient=0.001", "algorithm.kl_estimator=k1"]  # which has a warning
    overrides = ["run.num_steps=4", *penalty, f"checkpoint.dir={folder / 'elsewhere'}"]
    return [*SMALL, "checkpoint.every_steps=1", STAGES, *overrides]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("staged")
    finish_run(folder / "run", *words(folder))
    return folder / "run"


def test_the_steps_are_counted_through(run_dir: Path):
    assert [row["step"] for row in metrics(run_dir)] == [0, 1, 2, 3, 4]
    assert json.loads((run_dir / "result.json").read_text())["num_steps"] == 4


def test_a_warning_about_the_config_is_in_the_log_once(run_dir: Path):
    assert (run_dir / "run.log").read_text().count("`algorithm.kl_estimator` is `k1`") == 1


def test_the_lengths_of_each_stage_hold_in_it(run_dir: Path):
    first, second = (
        [
            trajectory
            for step in steps
            for trajectory in read_trajectories(run_dir / "trajectories" / f"step_{step:06d}.atr")
        ]
        for steps in ((1, 2), (3, 4))
    )
    assert max(len(trajectory.turns) for trajectory in second) == 2
    cut_short = [trajectory for trajectory in second if trajectory.termination is Termination.MAX_TURNS]
    assert len(cut_short) > sum(trajectory.termination is Termination.MAX_TURNS for trajectory in first)


def test_prompts_that_were_always_solved_do_not_come_again(run_dir: Path):
    def groups(step: int) -> dict[str, list[float]]:
        rewards: dict[str, list[float]] = {}
        for trajectory in read_trajectories(run_dir / "trajectories" / f"step_{step:06d}.atr"):
            if trajectory.reward is not None:
                rewards.setdefault(trajectory.prompt_id, []).append(trajectory.reward)
        return rewards

    solved = {name for step in (1, 2) for name, rewards in groups(step).items() if min(rewards) == 1.0}
    rates = json.loads((run_dir.parent / "elsewhere" / "step_000004" / "pass_rates.json").read_text())
    assert set(rates["left_out"]) == solved
    later = {name for step in (3, 4) for name in groups(step)}
    assert all("@epoch1" in name for name in later), "other data begin with an epoch of their own"
    assert not {name.partition("@")[0] for name in later} & solved


def test_optimiser_and_reference_restart(run_dir: Path):
    rows = metrics(run_dir)[1:]
    assert rows[0]["actor/learning_rate"] == rows[2]["actor/learning_rate"] != rows[1]["actor/learning_rate"]
    assert [row["actor/kl_reference"] == pytest.approx(0.0, abs=1e-9) for row in rows] == [True, False, True, False]


def test_the_checkpoint_that_is_the_reference_is_kept(run_dir: Path):
    kept = [folder.name for folder in (run_dir.parent / "elsewhere").glob("step_*")]
    assert sorted(kept) == ["step_000002", "step_000003", "step_000004"]
    assert not (run_dir / "checkpoints").exists()
    assert not (run_dir / "in_hand").exists()


def rolled_out(run_dir: Path, step: int) -> set[tuple[str, float | None]]:
    file = run_dir / "trajectories" / f"step_{step:06d}.atr"
    return {(trajectory.trajectory_id, trajectory.reward) for trajectory in read_trajectories(file)}


@pytest.mark.soak
@pytest.mark.parametrize("killed_after", [[2], [2, 3]])
def test_a_run_that_is_killed_between_its_stages_or_within_one_learns_as_if_nothing_had_been(
    run_dir: Path, tmp_path: Path, killed_after: list[int]
):
    """Against the run that nothing interrupted: rollouts follow from the seed, the step and the position in the data."""
    for step in killed_after:
        with running(tmp_path / "run", *words(tmp_path)) as run:
            last_file = tmp_path / "elsewhere" / f"step_{step:06d}" / "state.json"
            assert wait_until(last_file.exists, timeout_s=500), run.output()
            run.signal(signal.SIGKILL)
            run.process.wait(timeout=100)
        assert sorted(last_file.parent.parent.glob("step_*/state.json"))[-1] == last_file, "killed too late"
    finish_run(tmp_path / "run", *words(tmp_path))
    rows, expected = metrics(tmp_path / "run"), metrics(run_dir)
    assert [row["step"] for row in rows] == [0, 1, 2, 3, 4]
    for key in ("rollout/reward_mean", *(f"actor/{name}" for name in ("loss", "kl_reference", "learning_rate"))):
        for row, other in zip(rows[1:], expected[1:], strict=True):
            assert row[key] == pytest.approx(other[key], rel=1e-4, abs=1e-9), f"{key} of step {row['step']}"
    for step in (1, 2, 3, 4):
        assert rolled_out(tmp_path / "run", step) == rolled_out(run_dir, step), f"step {step}"
