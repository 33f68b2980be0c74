import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson
import pytest

from agentrl.checkpoints.contents import RunState
from agentrl.config.load import load_run_config
from agentrl.config.schema.paths import SHIPPED_FOLDER
from agentrl.config.validation.relations import Purpose
from agentrl.errors import CheckpointError, ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.run.fingerprints import CODE
from agentrl.run.plan import prepare, prepare_evaluation
from agentrl.run.stage_plans import stages_left


def directory(tmp_path: Path, *overrides: str) -> RunDirectory:
    return RunDirectory(load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}", *overrides]).config)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    opened = directory(tmp_path)
    opened.open({}, trains=True)
    return opened


def test_what_a_killed_run_left_half_written_is_cleared_away(run: RunDirectory, tmp_path: Path):
    half = Path(run.checkpoints.begin(2))
    run.close()
    evaluation = directory(tmp_path)
    evaluation.open({}, trains=False)
    evaluation.close()
    assert half.exists(), "an evaluation opens folders too, and has no business here"
    directory(tmp_path).open({}, trains=True)
    assert not half.exists()


def elsewhere(tmp_path: Path, name: str, *overrides: str, inputs: Mapping[str, Path] | None = None) -> RunDirectory:
    """A run of that name whose checkpoints are in a folder outside its own."""
    own = [f"run.dir={tmp_path / name}", f"checkpoint.dir={tmp_path / 'shared'}"]
    created = RunDirectory(load_run_config("configs/demo.yaml", [*own, *overrides]).config)
    created.open(inputs or {}, trains=True)
    return created


def test_an_edit_of_code_is_free_until_the_first_checkpoint(tmp_path: Path):
    module = tmp_path / "my_reward.py"
    inputs = {f"{CODE}my_reward": module}
    for limit in (1, 2):
        module.write_text(f"LIMIT = {limit}")
        run = elsewhere(tmp_path, "run", inputs=inputs)
        if limit == 2:
            run.checkpoints.begin(4)
            run.checkpoints.commit(RunState(step=4))
        run.close()
    module.write_text("LIMIT = 3")
    with pytest.raises(ConfigError, match="accept_code_changes"):
        elsewhere(tmp_path, "run", inputs=inputs)


def test_a_run_resumes_in_another_folder_from_its_checkpoints_elsewhere(tmp_path: Path):
    first = elsewhere(tmp_path, "first")
    first.checkpoints.begin(4)
    first.checkpoints.commit(RunState(step=4))
    moved = elsewhere(tmp_path, "moved")
    assert moved.checkpoints.latest() == RunState(step=4)
    assert not (moved.path / "checkpoints").exists()


def test_a_run_may_resume_where_there_is_nothing_but_exports_of_its_checkpoints(tmp_path: Path):
    elsewhere(tmp_path, "first")
    (tmp_path / "moved" / "exported" / "step_000004").mkdir(parents=True)
    elsewhere(tmp_path, "moved")
    assert (tmp_path / "moved" / "exported" / "step_000004").exists()


def test_a_run_that_still_lives_elsewhere_may_not_write_after_another_one_went_on(tmp_path: Path):
    first = elsewhere(tmp_path, "first")
    first.checkpoints.begin(4)
    elsewhere(tmp_path, "moved")
    with pytest.raises(CheckpointError, match="another run has taken over"):
        first.checkpoints.commit(RunState(step=4))


def test_a_file_in_the_way_of_the_checkpoints_is_one_clear_line(tmp_path: Path):
    (tmp_path / "shared").touch()
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: .*/shared cannot be used: .*the same command resumes"):
        elsewhere(tmp_path, "first")


def test_the_checkpoints_of_another_run_are_refused(tmp_path: Path):
    elsewhere(tmp_path, "first")
    with pytest.raises(
        ConfigError, match=r"checkpoint.dir: .*`run.seed` was 1 and is 7.* name another `checkpoint.dir`"
    ):
        elsewhere(tmp_path, "second", "run.seed=7")


def test_the_same_config_may_resume_and_another_one_is_refused_with_its_keys(run: RunDirectory, tmp_path: Path):
    run.close()
    reopened = directory(tmp_path)
    reopened.open({}, trains=True)
    reopened.close()
    with pytest.raises(ConfigError, match=r"`actor.learning_rate` was 0.0001 and is 0.5"):
        directory(tmp_path, "actor.learning_rate=0.5").open({}, trains=True)


def test_a_run_may_resume_with_another_number_of_processes(run: RunDirectory, tmp_path: Path):
    run.close()
    directory(tmp_path, "actor.num_workers=2", "rollout.num_engines=3", "checkpoint.keep_last=5").open({}, trains=True)
    pools = "cluster.pools={all: {num_processes: 2}}"
    roles = "cluster.roles={actor: all, rollout: all}"
    directory(tmp_path, "cluster.address=10.0.0.9:6379", "cluster.max_wait_s=60", pools, roles).open({}, trains=True)


def with_painter(tmp_path: Path, *, pool: str = "all", kind: str = "{pool: oil}") -> RunDirectory:
    """A run with an extra role; the config of that has a key `pool` too."""
    pools = "{all: {num_processes: 2}, more: {num_processes: 1}}"
    painter = f"{{class_path: studio.Painter, pool: {pool}, config: {kind}}}"
    roles = f"{{actor: all, rollout: {'all' if pool == 'more' else 'more'}}}"
    return directory(
        tmp_path, f"cluster.pools={pools}", f"cluster.roles={roles}", f"cluster.extra_roles={{painter: {painter}}}"
    )


def test_an_extra_role_may_resume_in_another_pool_and_not_as_something_else(tmp_path: Path):
    for pool in ("all", "more"):
        placed = with_painter(tmp_path, pool=pool)
        placed.open({}, trains=True)
        placed.close()
    with pytest.raises(ConfigError, match=r"`cluster\.extra_roles\.painter\.config\.pool` was 'oil' and is 'chalk'"):
        with_painter(tmp_path, pool="more", kind="{pool: chalk}").open({}, trains=True)


def test_a_run_that_died_of_memory_may_resume_with_what_takes_less_of_it(run: RunDirectory, tmp_path: Path):
    run.close()
    actor = ["max_tokens_per_micro_batch=2048", "activation_checkpointing=true", "cpu_offload=true", "shard_size=1"]
    rollout = ["max_concurrent_trajectories=8", "trajectory_timeout_s=600", "tool_timeout_s=20"]
    others = ["checkpoint.every_steps=5", "validation.every_steps=20", "judge.num_slots=2", "reward.timeout_s=60"]
    smaller = directory(tmp_path, *(f"actor.{key}" for key in actor), *(f"rollout.{key}" for key in rollout), *others)
    smaller.open({}, trains=True)


@pytest.mark.parametrize("choice", ["score", "mask"])
def test_a_run_that_met_a_negative_reward_resumes_with_the_way_out_of_the_message(
    run: RunDirectory, tmp_path: Path, choice: str
):
    run.close()
    directory(tmp_path, f"reward.score_unfinished={choice}").open({}, trains=True)


@pytest.mark.parametrize(
    "override",
    [
        "actor.mini_batches_per_step=2",
        "rollout.max_staleness=1",
        "rollout.prompts_per_step=6",
        "rollout.max_turns=2",
        "algorithm.clip_ratio_low=0.1",
        "validation.samples_per_prompt=2",
        "model.dtype=bfloat16",
    ],
)
def test_what_changes_the_learning_is_refused(run: RunDirectory, tmp_path: Path, override: str):
    run.close()
    with pytest.raises(ConfigError, match=f"`{override.partition('=')[0]}` was"):
        directory(tmp_path, override).open({}, trains=True)


def test_a_section_that_is_gone_is_a_changed_config(tmp_path: Path):
    first = directory(tmp_path, "tool_config_path=null", "tools.code_judge.batch_size=3")
    first.open({}, trains=True)
    first.close()
    with pytest.raises(ConfigError, match=r"`tools.code_judge.batch_size` was 3"):
        directory(tmp_path, "tool_config_path=null").open({}, trains=True)


def test_a_prompt_with_an_escaped_brace_can_be_resumed(tmp_path: Path):
    override = r"data.system_prompt='answer as \${answer}'"
    first = directory(tmp_path, override)
    first.open({}, trains=True)
    first.close()
    directory(tmp_path, override).open({}, trains=True)


def test_a_start_that_died_before_its_config_was_written_can_be_tried_again(tmp_path: Path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / ".lock").touch()
    (folder / "inputs.json").write_text('{"data.train_files[0]": "of older data"}')
    data = tmp_path / "train.jsonl"
    data.write_text("one")
    directory(tmp_path).open({"data.train_files[0]": data}, trains=True)


def test_a_lone_brace_in_a_prompt_is_saved_as_it_is(tmp_path: Path):
    override = r"data.system_prompt='cost \${'"
    first = directory(tmp_path, override)
    first.open({}, trains=True)
    first.close()
    directory(tmp_path, override).open({}, trains=True)


def test_other_content_in_the_same_file_is_refused(tmp_path: Path):
    data = tmp_path / "train.jsonl"
    data.write_text("one")
    first = directory(tmp_path)
    first.open({"data.train_files[0]": data}, trains=True)
    first.close()
    data.write_text("two")
    with pytest.raises(ConfigError, match=r"read other content from `data.train_files\[0\]`"):
        directory(tmp_path).open({"data.train_files[0]": data}, trains=True)


def test_other_content_in_the_same_file_is_refused_from_another_folder_too(tmp_path: Path):
    data = tmp_path / "train.jsonl"
    data.write_text("one")
    inputs = {"data.train_files[0]": data}
    elsewhere(tmp_path, "first", inputs=inputs)
    elsewhere(tmp_path, "second", inputs=inputs)
    data.write_text("two")
    with pytest.raises(
        ConfigError,
        match=r"checkpoint.dir: .*read other content from `data.train_files\[0\]`.* name another `checkpoint.dir`",
    ):
        elsewhere(tmp_path, "third", inputs=inputs)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """The demo's policy, in a folder of its own."""
    return Path(shutil.copytree(SHIPPED_FOLDER / "examples" / "arithmetic" / "policy", tmp_path / "model"))


def train_further(model: Path) -> None:
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def test_other_weights_in_the_same_folder_are_refused_and_the_same_ones_go_on(tmp_path: Path, model: Path):
    words = [f"run.dir={tmp_path / 'run'}", f"model.path={model}"]
    prepare(load_run_config("configs/demo.yaml", words)).directory.close()
    (model / "model.safetensors").touch()
    prepare(load_run_config("configs/demo.yaml", words)).directory.close()
    train_further(model)
    with pytest.raises(ConfigError, match=r"read other content from `model.path` \(.*/model\).* another `run.dir`"):
        prepare(load_run_config("configs/demo.yaml", words))


def test_other_weights_are_refused_from_another_folder_too(tmp_path: Path, model: Path):
    words = [f"checkpoint.dir={tmp_path / 'shared'}", f"model.path={model}"]
    for name in ("first", "second"):
        prepare(load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / name}", *words])).directory.close()
    train_further(model)
    with pytest.raises(
        ConfigError, match=r"checkpoint.dir: .*read other content from `model.path` .* `checkpoint.dir`"
    ):
        prepare(load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'third'}", *words]))


def test_a_run_that_began_before_models_had_digests_resumes_and_has_them_from_then_on(tmp_path: Path, model: Path):
    words = [f"run.dir={tmp_path / 'run'}", f"model.path={model}"]
    prepare(load_run_config("configs/demo.yaml", words)).directory.close()
    saved = tmp_path / "run" / "inputs.json"
    digests = orjson.loads(saved.read_bytes())
    del digests["model.path"]
    saved.write_bytes(orjson.dumps(digests))
    train_further(model)
    prepare(load_run_config("configs/demo.yaml", words)).directory.close()
    train_further(model)
    with pytest.raises(ConfigError, match=r"read other content from `model\.path`"):
        prepare(load_run_config("configs/demo.yaml", words))


def test_an_evaluation_of_other_weights_in_the_same_folder_is_not_shown_as_theirs(tmp_path: Path, model: Path):
    words = [f"run.dir={tmp_path / 'run'}", f"model.path={model}"]
    measured = prepare_evaluation(load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION)).directory
    measured.finish({})
    measured.close()
    reopened = prepare_evaluation(load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION)).directory
    assert reopened.finished
    reopened.close()
    train_further(model)
    with pytest.raises(ConfigError, match=r"read other content from `model\.path`"):
        prepare_evaluation(load_run_config("configs/demo.yaml", words, purpose=Purpose.EVALUATION))


def test_two_processes_cannot_share_a_run(run: RunDirectory, tmp_path: Path):
    with pytest.raises(ConfigError, match="another process is running"):
        directory(tmp_path).open({}, trains=True)


def test_a_folder_that_cannot_be_made_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"run.dir: /proc/nothing cannot be used"):
        RunDirectory(load_run_config("configs/demo.yaml", ["run.dir=/proc/nothing"]).config).open({}, trains=True)


def test_a_run_is_finished_only_by_its_result(run: RunDirectory):
    assert not run.finished
    run.finish({"num_steps": 60})
    assert run.finished
    assert run.result() == {"num_steps": 60}


def test_a_finished_run_resumes_when_it_is_given_more_steps_and_not_when_it_is_given_fewer(
    run: RunDirectory, tmp_path: Path
):
    run.finish({"num_steps": 60})
    run.close()
    same = directory(tmp_path)
    same.open({}, trains=True)
    same.close()
    assert same.finished
    with pytest.raises(ConfigError, match=r"`run.num_steps` was 60 and is 50"):
        directory(tmp_path, "run.num_steps=50").open({}, trains=True)
    longer = directory(tmp_path, "run.num_steps=70")
    longer.open({}, trains=True)
    longer.close()
    assert not longer.finished


@pytest.mark.parametrize("stages", [False, True])
def test_a_number_of_steps_that_was_mistyped_can_be_taken_back_down_to_what_is_done(tmp_path: Path, stages: bool):
    def of(num_steps: int) -> RunDirectory:
        words = [f"stages=[{{num_steps: 1}}, {{num_steps: {num_steps - 1}}}]"] if stages else []
        return directory(tmp_path, f"run.num_steps={num_steps}", *words)

    run = of(2000)
    run.open({}, trains=True)
    run.checkpoints.begin(10)
    run.checkpoints.commit(RunState(step=10))
    run.note_checkpoint(10)
    run.close()
    for num_steps in (20, 10):
        run = of(num_steps)
        run.open({}, trains=True)
        run.close()
    with pytest.raises(ConfigError, match=r"num_steps` was \d+ and is (8|9)\."):
        of(9).open({}, trains=True)


STAGES = ("{num_steps: 2}", "{num_steps: 2, max_turns: 2}", "{num_steps: 2, max_pass_rate: 0.5}")


def staged(tmp_path: Path, *stages: str) -> RunDirectory:
    num_steps = sum(int(stage.split("num_steps: ")[1][0]) for stage in stages)
    return directory(tmp_path, f"run.num_steps={num_steps}", f"stages=[{', '.join(stages)}]")


def begun(tmp_path: Path, *stages: str, step: int, inputs: Mapping[str, Path] | None = None) -> None:
    """Leave a run that has done so many steps."""
    run = staged(tmp_path, *stages)
    run.open(inputs or {}, trains=True)
    run.checkpoints.begin(step)
    run.checkpoints.commit(RunState(step=step))
    run.note_checkpoint(step)
    run.close()


@pytest.mark.parametrize(
    ("step", "stages"),
    [
        (3, [*STAGES[:2], "{num_steps: 1, max_pass_rate: 0.9}"]),
        (3, STAGES[:2]),
        (3, [*STAGES, "{num_steps: 4}"]),
        (3, [STAGES[0], "{num_steps: 3, max_turns: 2}", STAGES[2]]),
        (4, [STAGES[0], "{num_steps: 3, max_turns: 2}"]),
        (2, [STAGES[0], "{num_steps: 1, reset_optimiser: true}"]),
        (2, ["{num_steps: 3}"]),
        (3, [STAGES[0], "{num_steps: 1, max_turns: 2}"]),
        (3, [STAGES[0], "{num_steps: 2, max_turns: 2, max_response_tokens: 256}"]),  # which holds anyway
    ],
)
def test_stages_that_have_not_begun_may_change_and_the_last_that_has_may_have_another_length(
    tmp_path: Path, step: int, stages: list[str]
):
    begun(tmp_path, *STAGES, step=step)
    staged(tmp_path, *stages).open({}, trains=True)


@pytest.mark.parametrize(
    ("step", "stages", "named"),
    [
        (3, ["{num_steps: 3}", *STAGES[1:]], r"`stages\[0\]\.num_steps` was 2 and is 3"),
        (4, [STAGES[0], "{num_steps: 1, max_turns: 2}"], r"`stages\[1\]\.num_steps` was 2 and is 1"),
        (3, [STAGES[0], "{num_steps: 3, max_turns: 3}"], r"`stages\[1\]\.max_turns` was 2 and is 3"),
        (3, STAGES[:1], r"`stages\[1\]\.num_steps` was 2 and is 0"),
        (5, [*STAGES[:2], "{num_steps: 2, max_pass_rate: 0.9}"], r"`stages\[2\]\.max_pass_rate` was 0\.5 and is 0\.9"),
    ],
)
def test_stages_that_have_begun_stay(tmp_path: Path, step: int, stages: list[str], named: str):
    begun(tmp_path, *STAGES, step=step)
    with pytest.raises(ConfigError, match=rf"run of another config: {named}\."):
        staged(tmp_path, *stages).open({}, trains=True)


def test_the_last_stage_of_a_finished_run_stays_where_its_checkpoints_are_gone(tmp_path: Path):
    begun(tmp_path, *STAGES, step=6)
    run = staged(tmp_path, *STAGES)
    run.finish({"num_steps": 6})
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(ConfigError, match=r"`stages\[2\]\.num_steps` was 2 and is 0"):
        staged(tmp_path, *STAGES[:2]).open({}, trains=True)
    staged(tmp_path, *STAGES).open({}, trains=True)


def test_a_run_may_be_given_stages_after_what_it_is_and_lose_those_to_come(run: RunDirectory, tmp_path: Path):
    run.finish({"num_steps": 60})
    run.close()
    later = directory(tmp_path, "run.num_steps=62", "stages=[{num_steps: 60}, {num_steps: 2, max_turns: 2}]")
    later.open({}, trains=True)
    later.close()
    assert not later.finished
    directory(tmp_path, "run.num_steps=60").open({}, trains=True)


def test_the_data_of_a_stage_that_has_not_begun_may_change(tmp_path: Path):
    data = tmp_path / "later.jsonl"
    inputs = {"stages[1].train_files[0]": data}
    for step, content in ((1, "one"), (2, "two"), (3, "three")):
        data.write_text(content)
        begun(tmp_path, *STAGES, step=step, inputs=inputs)
    data.write_text("four")
    with pytest.raises(ConfigError, match=r"read other content from `stages\[1\]\.train_files\[0\]`"):
        staged(tmp_path, *STAGES).open(inputs, trains=True)


def test_stages_to_come_may_change_where_the_checkpoints_are_elsewhere_too(tmp_path: Path):
    words = ["run.num_steps=4", "stages=[{num_steps: 2}, {num_steps: 2}]"]
    first = elsewhere(tmp_path, "first", *words)
    first.checkpoints.begin(2)
    first.checkpoints.commit(RunState(step=2))
    elsewhere(tmp_path, "second", "run.num_steps=2", "stages=[{num_steps: 2}]")
    with pytest.raises(ConfigError, match=r"checkpoint.dir: .*`stages\[0\]\.num_steps` was 2 and is 1"):
        elsewhere(tmp_path, "third", "run.num_steps=1", "stages=[{num_steps: 1}]")


def test_a_finished_run_is_shown_on_a_machine_that_could_not_hold_it(tmp_path: Path):
    pools = "cluster.pools={a: {num_processes: 2, num_cpus: 1, num_gpus: 8}}"
    words = [f"run.dir={tmp_path / 'run'}", pools, "cluster.roles={rollout: a, actor: a}"]
    with pytest.raises(ConfigError, match=r"`cluster\.pools\.a`"):
        prepare(load_run_config("configs/demo.yaml", words))
    assert not (tmp_path / "run").exists()
    elsewhere = prepare(load_run_config("configs/demo.yaml", words[:1])).directory
    elsewhere.finish({"num_steps": 60})
    elsewhere.close()
    assert stages_left(prepare(load_run_config("configs/demo.yaml", words))) == []


def test_a_result_without_a_config_beside_it_is_not_mistaken_for_that_of_the_run(run: RunDirectory):
    run.finish({"num_steps": 60})
    assert run.finished
    (run.path / "config.yaml").unlink()
    assert not run.finished


def with_a_checkpoint(tmp_path: Path, *overrides: str) -> RunDirectory:
    """A run whose checkpoints are elsewhere, and whose first one counts."""
    run = elsewhere(tmp_path, "run", *overrides)
    run.checkpoints.begin(4)
    run.checkpoints.commit(RunState(step=4))
    run.note_checkpoint(4)
    run.close()
    return run


def contents(run: RunDirectory) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in run.path.iterdir()}


def test_a_run_whose_checkpoints_are_gone_is_refused_before_anything_of_it_changes(tmp_path: Path):
    run = with_a_checkpoint(tmp_path)
    run.finish({"num_steps": 60})
    (tmp_path / "shared").rename(tmp_path / "not mounted")
    before = contents(run)
    for attempt in range(2):
        with pytest.raises(ConfigError, match=r"checkpoint.dir: .*/shared has no checkpoint, .* step 4 .*`run.dir`"):
            elsewhere(tmp_path, "run", "run.num_steps=70")
        assert contents(run) == before, f"attempt {attempt}"
    assert not (tmp_path / "shared").exists()
    (tmp_path / "not mounted").rename(tmp_path / "shared")
    reopened = elsewhere(tmp_path, "run", "run.num_steps=70")
    assert reopened.checkpoints.latest() == RunState(step=4)


def finished_at_step_4(tmp_path: Path) -> RunDirectory:
    run = with_a_checkpoint(tmp_path, "run.num_steps=4")
    run.finish({"num_steps": 4})
    return run


def test_a_finished_run_stays_so_where_going_on_for_longer_is_refused_by_the_place_of_its_checkpoints(tmp_path: Path):
    run = finished_at_step_4(tmp_path)
    before = contents(run)
    in_the_way = tmp_path / "shared" / "writer.partial"
    in_the_way.mkdir()  # so that nothing can be written there, as on a disk that is mounted read-only
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: .*/shared cannot be used: IsADirectoryError"):
        elsewhere(tmp_path, "run", "run.num_steps=5")
    assert contents(run) == before
    finished = elsewhere(tmp_path, "run", "run.num_steps=4")
    assert finished.finished, "which is only shown, and writes nothing there"
    finished.close()
    in_the_way.rmdir()
    assert not elsewhere(tmp_path, "run", "run.num_steps=5").finished


@pytest.mark.parametrize("undone", [["config.yaml", "result.json"], ["result.json"]])
@pytest.mark.parametrize(("num_steps", "is_finished"), [(4, True), (5, False)])
def test_a_start_for_longer_that_was_killed_half_way_can_be_repeated_and_taken_back(
    tmp_path: Path, undone: list[str], num_steps: int, is_finished: bool
):
    run = finished_at_step_4(tmp_path)
    before = contents(run)
    elsewhere(tmp_path, "run", "run.num_steps=5").close()
    for name in undone:
        (run.path / name).write_bytes(before[name])
    reopened = elsewhere(tmp_path, "run", f"run.num_steps={num_steps}")
    assert reopened.finished is is_finished
    assert reopened.checkpoints.latest() == RunState(step=4)


def test_a_new_run_whose_checkpoints_cannot_be_kept_can_be_tried_again(tmp_path: Path):
    (tmp_path / "shared" / "writer.partial").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: .*/shared cannot be used: IsADirectoryError"):
        elsewhere(tmp_path, "run")
    (tmp_path / "shared" / "writer.partial").rmdir()
    elsewhere(tmp_path, "run")


def test_checkpoints_that_are_gone_matter_neither_to_a_finished_run_nor_to_an_evaluation(tmp_path: Path):
    run = with_a_checkpoint(tmp_path)
    shutil.rmtree(tmp_path / "shared")
    words = [f"run.dir={tmp_path / 'evaluation'}", f"checkpoint.dir={tmp_path / 'shared'}"]
    evaluation = RunDirectory(load_run_config("configs/demo.yaml", words).config)
    evaluation.open({}, trains=False)
    evaluation.close()
    run.finish({"num_steps": 60})
    assert elsewhere(tmp_path, "run").finished


def test_an_evaluation_in_the_folder_of_a_training_run_would_mix_their_trajectories_and_is_refused(tmp_path: Path):
    run = with_a_checkpoint(tmp_path)
    words = [f"run.dir={run.path}", f"checkpoint.dir={tmp_path / 'shared'}"]
    with pytest.raises(ConfigError, match="holds a training run"):
        RunDirectory(load_run_config("configs/demo.yaml", words).config).open({}, trains=False)


@pytest.mark.parametrize("edit", ["code", "reward.score_unfinished=score", "validation.temperature=0.5"])
def test_an_evaluation_with_trajectories_goes_on_with_the_code_and_keys_they_were_scored_by(tmp_path: Path, edit: str):
    module, overrides = tmp_path / "my_reward.py", [edit] if "=" in edit else []
    module.write_text("LIMIT = 1")
    inputs = {f"{CODE}my_reward": module}
    first = directory(tmp_path)
    first.open(inputs, trains=False)
    first.close()
    if edit == "code":
        module.write_text("LIMIT = 2")
        unused = directory(tmp_path)
        unused.open(inputs, trains=False)  # nothing is measured yet
        unused.close()
        module.write_text("LIMIT = 3")
    first.trajectories.append(0, [], validation=True)
    with pytest.raises(ConfigError, match=r"other content|of another config"):
        directory(tmp_path, *overrides).open(inputs, trains=False)


def test_an_evaluation_goes_on_with_servers_at_another_address(tmp_path: Path):
    for port in (8001, 8002):
        words = ["rollout.engine=openai", f"rollout.openai.base_urls=['http://127.0.0.1:{port}/v1']"]
        loaded = load_run_config(
            "configs/demo.yaml", [f"run.dir={tmp_path / 'run'}", *words], purpose=Purpose.EVALUATION
        )
        evaluation = RunDirectory(loaded.config)
        evaluation.open({}, trains=False)
        evaluation.trajectories.append(0, [], validation=True)
        evaluation.close()


def test_an_evaluation_that_lost_trajectories_is_not_finished(tmp_path: Path):
    evaluation = directory(tmp_path)
    evaluation.open({}, trains=False)
    evaluation.finish({"num_lost": 3})
    assert not evaluation.finished
    evaluation.finish({"num_lost": 0})
    assert evaluation.finished


def test_a_run_that_died_before_its_first_checkpoint_restarts(tmp_path: Path):
    first = elsewhere(tmp_path, "run")
    first.checkpoints.begin(4)
    first.close()
    shutil.rmtree(tmp_path / "shared")
    reopened = elsewhere(tmp_path, "run")
    assert reopened.checkpoints.latest() is None


def test_a_run_that_went_on_in_another_folder_knows_of_its_checkpoints_there(tmp_path: Path):
    with_a_checkpoint(tmp_path)
    moved = elsewhere(tmp_path, "moved")
    moved.close()
    shutil.rmtree(tmp_path / "shared")
    with pytest.raises(ConfigError, match=r"the run in .*/moved had written that of step 4 there"):
        elsewhere(tmp_path, "moved")
