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
    opened.open({})
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
    run.close()
    directory(tmp_path).open({})
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
    run.close()
    again = directory(tmp_path)
    again.open({})
    again.close()
    with pytest.raises(ConfigError, match=r"`actor.learning_rate` was 0.0001 and is 0.5"):
        directory(tmp_path, "actor.learning_rate=0.5").open({})


def test_a_section_that_is_gone_is_a_changed_config(tmp_path: Path):
    first = directory(tmp_path, "tool_config_path=null", "tools.code_judge.batch_size=3")
    first.open({})
    first.close()
    with pytest.raises(ConfigError, match=r"`tools.code_judge.batch_size` was 3"):
        directory(tmp_path, "tool_config_path=null").open({})


def test_a_prompt_with_an_escaped_brace_can_be_resumed(tmp_path: Path):
    override = r"data.system_prompt='answer as \${answer}'"
    first = directory(tmp_path, override)
    first.open({})
    first.close()
    directory(tmp_path, override).open({})


def test_a_start_that_died_before_its_config_was_written_can_be_tried_again(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / "inputs.json").write_text('{"data.train_files[0]": "of older data"}')
    data = tmp_path / "train.jsonl"
    data.write_text("one")
    directory(tmp_path).open({"data.train_files[0]": data})


def test_a_lone_brace_in_a_prompt_is_saved_as_it_is(tmp_path: Path):
    override = r"data.system_prompt='cost \${'"
    first = directory(tmp_path, override)
    first.open({})
    first.close()
    directory(tmp_path, override).open({})


def test_other_content_in_the_same_file_is_refused(tmp_path: Path):
    data = tmp_path / "train.jsonl"
    data.write_text("one")
    first = directory(tmp_path)
    first.open({"data.train_files[0]": data})
    first.close()
    data.write_text("two")
    with pytest.raises(ConfigError, match=r"read other content from `data.train_files\[0\]`"):
        directory(tmp_path).open({"data.train_files[0]": data})


def test_two_processes_cannot_share_a_run(run: RunDirectory, tmp_path: Path):
    with pytest.raises(ConfigError, match="another process is running"):
        directory(tmp_path).open({})


def test_a_folder_that_cannot_be_made_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"run.dir: /proc/nothing cannot be used"):
        RunDirectory(load_run_config("configs/demo.yaml", ["run.dir=/proc/nothing"]).config).open({})


def test_a_run_is_finished_only_by_its_result(run: RunDirectory):
    assert not run.finished
    run.finish({"num_steps": 60})
    assert run.finished
    assert run.result() == {"num_steps": 60}
