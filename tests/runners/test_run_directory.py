from pathlib import Path

import pytest

from agentrl.config.load import load_run_config
from agentrl.errors import ConfigError
from agentrl.runners.run_directory import RunDirectory, RunState


def directory(tmp_path: Path, *overrides: str) -> RunDirectory:
    return RunDirectory(load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}", *overrides]).config)


def write_checkpoint(run: RunDirectory, step: int, *, keep_last: int = 2) -> None:
    folder = run.begin_checkpoint(step)
    (folder / "actor").mkdir()
    (folder / "actor" / "weights").write_text(f"weights of {step}")
    run.commit_checkpoint(RunState(step=step, prompts_taken=12 * step), keep_last=keep_last)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    opened = directory(tmp_path)
    opened.open()
    return opened


def test_the_newest_checkpoint_comes_back_with_its_state(run: RunDirectory):
    assert run.latest_checkpoint() is None
    write_checkpoint(run, 9)
    write_checkpoint(run, 10)
    folder, state = run.latest_checkpoint() or pytest.fail("no checkpoint")
    assert (folder / "actor" / "weights").read_text() == "weights of 10"
    assert state == RunState(step=10, prompts_taken=120)


def test_a_checkpoint_that_was_being_written_does_not_count_and_is_cleared_away(run: RunDirectory, tmp_path: Path):
    write_checkpoint(run, 1)
    half = run.begin_checkpoint(2)
    (half / "actor").mkdir()
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest[1].step == 1
    again = directory(tmp_path)
    again.open()
    assert not half.exists()


def test_only_the_last_checkpoints_are_kept(run: RunDirectory):
    for step in range(1, 6):
        write_checkpoint(run, step, keep_last=2)
    assert sorted(folder.name for folder in (run.path / "checkpoints").iterdir()) == ["step_000004", "step_000005"]


def test_the_same_step_can_be_written_again_after_going_back(run: RunDirectory):
    write_checkpoint(run, 3)
    write_checkpoint(run, 3)
    latest = run.latest_checkpoint()
    assert latest is not None
    assert latest[1].step == 3


def test_the_same_config_may_go_on_and_another_one_is_refused_with_its_keys(run: RunDirectory, tmp_path: Path):
    directory(tmp_path).open()
    with pytest.raises(ConfigError, match=r"`actor.learning_rate` was 0.0001 and is 0.5"):
        directory(tmp_path, "actor.learning_rate=0.5").open()


def test_a_config_of_another_version_says_whose_it_is(run: RunDirectory, tmp_path: Path):
    saved = run.path / "config.yaml"
    saved.write_text(saved.read_text() + "warp_drive: true\n")
    with pytest.raises(ConfigError, match=r"written by another version of agentrl.*warp_drive"):
        directory(tmp_path).open()


def test_a_run_is_finished_only_by_its_result(run: RunDirectory):
    assert not run.finished
    run.finish(num_steps=60)
    assert run.finished
