"""Checkpoints of a run that goes on become model folders, by the command and in this process."""

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec
import pytest
from transformers import AutoModelForCausalLM

from agentrl.checkpoints.contents import RunState
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.runners import export
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import plan_update
from tests.object_store import object_store
from tests.small_disk import fill, small_disk
from tests.training.training_cases import alone, make_policy, step_groups

ACCURACIES = {10: 0.5, 20: 0.5, 30: 0.25, 40: None}
LEFTOVER = 50


@dataclass
class LiveRun:
    """A run that another process could be in: locked, with checkpoints and one that is being written."""

    config_file: Path
    run_dir: Path
    exports: Path
    """The actor's own exports, one folder per step."""

    def words(self) -> list[str]:
        return [str(self.config_file), f"run.dir={self.run_dir}"]

    def config(self, *overrides: str) -> RunConfig:
        words = [f"run.dir={self.run_dir}", *overrides]
        return load_run_config(str(self.config_file), words, purpose=Purpose.EXPORT).config


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveRun]:
    folder = tmp_path_factory.mktemp("live")
    make_policy(folder / "policy")
    (folder / "tiny.yaml").write_text("model: {path: policy}\nactor: {learning_rate: 0.02, warmup_steps: 0}\n")
    run = LiveRun(config_file=folder / "tiny.yaml", run_dir=folder / "run", exports=folder / "actors")
    directory = RunDirectory(run.config())
    directory.open({}, trains=True)
    parallel = Parallel(alone())
    actor = Actor(run.config(), "actor")
    actor.setup(parallel)
    for step, accuracy in ACCURACIES.items():
        [(shard, refs)] = plan_update(step_groups(), step=step, num_ranks=1, num_mini_batches=1)
        actor.update(shard, [source.ref for source in refs], [TokenInputs() for _ in refs])
        actor.save(f"{directory.checkpoints.begin(step)}/actor")
        actor.export(str(run.exports / str(step)))
        while not actor.saved():
            time.sleep(0.02)
        directory.checkpoints.commit(RunState(step=step, accuracy=accuracy))
    actor.close()
    parallel.close()
    (Path(directory.checkpoints.begin(LEFTOVER)) / "actor").mkdir()
    yield run
    directory.close()


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


Called = Callable[..., tuple[int, str, str]]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Called:
    """Call the command in this process; gives exit status, output and errors."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["export", *arguments])
        capsys.readouterr()
        status = export.main()
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


@pytest.mark.parametrize(
    ("words", "step"), [([], 40), (["--step", "30"], 30), (["--best"], 20)], ids=["newest", "step", "best"]
)
def test_the_checkpoint_that_is_asked_for_is_what_the_actor_exported_then(
    run: LiveRun, called: Called, tmp_path: Path, words: list[str], step: int
):
    status, out, errors = called(*run.words(), *words, "--to", str(tmp_path / "out"))
    assert status == 0, errors
    assert f"policy of step {step}" in out
    assert str(tmp_path / "out") in out
    assert files(tmp_path / "out") == files(run.exports / str(step))
    assert list(tmp_path.iterdir()) == [tmp_path / "out"], "nothing half written stays"


def test_a_run_that_is_alive_is_exported_into_its_folder_and_nothing_of_it_is_touched(run: LiveRun):
    before = {path: path.stat().st_mtime_ns for path in run.run_dir.rglob("*")}
    export.export(run.config(), step=10)
    exported = run.run_dir / "exported"
    assert files(exported / "step_000010") == files(run.exports / "10")
    after = {path: path.stat().st_mtime_ns for path in run.run_dir.rglob("*") if not path.is_relative_to(exported)}
    assert after == before, "what is being written is no leftover"
    shutil.rmtree(exported)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--step", "15"], "no checkpoint of step 15 in .*run/checkpoints; .* takes one of: 10, 20, 30, 40$"),
        (["--step", str(LEFTOVER)], f"no checkpoint of step {LEFTOVER} in .*: 10, 20, 30, 40$"),
        (["checkpoint.dir=/nowhere/at/all"], r"no checkpoint in /nowhere/at/all; name the run with `run.dir=...`"),
        (["model.path=/nowhere"], r"model\.path: /nowhere: no such folder"),
        (["actor.lora.rank=4"], r"holds checkpoints of a run of another config: `actor.lora.rank` was 0 and is 4"),
        (["--to", "FOLDER/tiny.yaml"], r"tiny\.yaml exists and is not empty; .*`--to`"),
        (["--to", "FOLDER/tiny.yaml/out"], r"tiny\.yaml/out cannot be written: .*File exists: .*`--to`"),
        (["--to", "FOLDER/policy"], r"policy exists and is not empty"),
        (["--to", "nowhere://x"], r"--to: nowhere://x cannot be reached: ValueError: Protocol not known"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(
    run: LiveRun, called: Called, tmp_path: Path, words: list[str], message: str
):
    folder = run.config_file.parent
    before = files(folder)
    words = [word.replace("FOLDER", str(folder)) for word in words]
    status, _, errors = called(*run.words(), "--to", str(tmp_path / "out"), *words)
    assert status == 2
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    assert re.search(message, errors.strip()), errors
    assert not list(tmp_path.iterdir())
    assert files(folder) == before


def test_the_best_needs_an_accuracy(run: LiveRun, tmp_path: Path):
    store = RunDirectory(run.config(f"checkpoint.dir={tmp_path}")).checkpoints
    store.begin(10)
    store.commit(RunState(step=10))
    with pytest.raises(ConfigError, match=r"no checkpoint with a validation accuracy in .* takes one of: 10$"):
        export.chosen_checkpoint(store, step=None, best=True)


def test_an_empty_folder_is_filled(run: LiveRun, tmp_path: Path):
    (tmp_path / "out").mkdir()
    export.export(run.config(), to=str(tmp_path / "out"))
    assert files(tmp_path) == {f"out/{name}": content for name, content in files(run.exports / "40").items()}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        *[(f"actor/{name}", size) for name in ("__0_0.distcp", ".metadata") for size in (0, 20, None)],
        ("state.json", 0),
        ("state.json", 20),
    ],
)
def test_a_damaged_checkpoint_ends_in_one_line_and_leaves_no_folder(
    run: LiveRun, called: Called, tmp_path: Path, name: str, size: int | None
):
    shutil.copytree(run.run_dir / "checkpoints", tmp_path / "copy")
    file = tmp_path / "copy" / "step_000040" / name
    whole = file.read_bytes()
    file.unlink()
    if size is not None:
        file.write_bytes(whole[:size])
    status, _, errors = called(*run.words(), f"checkpoint.dir={tmp_path / 'copy'}", "--to", str(tmp_path / "out"))
    assert status == 1
    problem = "is missing" if size is None else "cannot be read"
    assert errors.startswith(f"error: checkpoint {file.parent} is damaged: `{file.name}` {problem}")
    assert errors.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_a_damaged_checkpoint_is_not_in_the_way_of_another_one(run: LiveRun, called: Called, tmp_path: Path):
    shutil.copytree(run.run_dir / "checkpoints", tmp_path / "copy")
    (tmp_path / "copy" / "step_000040" / "state.json").write_bytes(b"")
    words = [*run.words(), f"checkpoint.dir={tmp_path / 'copy'}", "--to", str(tmp_path / "out")]
    status, _, errors = called(*words, "--step", "30")
    assert status == 0, errors
    assert files(tmp_path / "out") == files(run.exports / "30")


@pytest.mark.parametrize("leave_bytes", [0, 4096, 65536])
def test_a_full_disk_is_reported_in_one_line_and_nothing_half_written_stays(
    run: LiveRun, called: Called, tmp_path: Path, leave_bytes: int
):
    with small_disk(tmp_path / "disk") as disk:
        fill(disk, leave_bytes=leave_bytes)
        status, _, errors = called(*run.words(), "--to", str(disk / "out"))
        assert status == 2
        *bars, error = errors.splitlines()
        assert error.startswith(f"error: {disk / 'out'} cannot be written: ")
        assert "No space left on device" in error
        assert error.endswith("name another folder with `--to`")
        assert all(not bar or bar.startswith("Writing model shards") for bar in bars), "no traceback"
        assert [path.name for path in disk.iterdir()] == ["fill"]


def test_other_factors_than_those_of_the_run_are_refused(run: LiveRun, tmp_path: Path):
    """Another `alpha` would fit, and give other weights."""
    lora = ["actor.lora.rank=4", f"run.dir={tmp_path / 'run'}"]
    RunDirectory(run.config(*lora)).open({}, trains=True)
    RunDirectory(run.config(*lora, "model.dtype=bfloat16", "run.seed=7")).refuse_other_policy()
    with pytest.raises(ConfigError, match=r"`actor\.lora\.alpha` was \d+ and is 7"):
        RunDirectory(run.config(*lora, "actor.lora.alpha=7")).refuse_other_policy()
    with pytest.raises(ConfigError, match=r"`model\.path` was .*policy' and is 'other/model'"):
        RunDirectory(run.config(*lora, "model.path=other/model")).refuse_other_policy()


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_factors_are_not_added_to_other_weights_that_have_taken_the_place_of_those_of_the_run(
    run: LiveRun, tmp_path: Path, is_elsewhere: bool
):
    base = Path(shutil.copytree(run.config_file.parent / "policy", tmp_path / "base"))
    words = [f"run.dir={tmp_path / 'run'}", f"model.path={base}"]
    words += [f"checkpoint.dir={tmp_path / 'shared'}"] if is_elsewhere else []
    lora = run.config(*words, "actor.lora.rank=4")
    started = RunDirectory(lora)
    started.open({"model.path": base}, trains=True)
    RunDirectory(lora).refuse_other_policy()
    [weights] = base.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:-4] + b"else")
    with pytest.raises(ConfigError, match=r"holds checkpoints of a run that read other content from `model\.path`"):
        RunDirectory(lora).refuse_other_policy()
    # As of a run that began before models had digests.
    (tmp_path / ("shared" if is_elsewhere else "run") / "inputs.json").write_text("{}")
    RunDirectory(lora).refuse_other_policy()


def test_a_policy_that_is_exported_to_a_store_and_fetched_is_the_one_that_loads(
    run: LiveRun, called: Called, tmp_path: Path
):
    with object_store() as bucket:
        status, out, errors = called(*run.words(), "--to", f"{bucket}/policies/last/")
        assert (status, out) == (0, f"policy of step 40: {bucket}/policies/last/\n"), errors
        second = called(*run.words(), "--to", f"{bucket}/policies/last")
        fsspec.filesystem("s3").get(f"{bucket}/policies/last/", str(tmp_path / "fetched"), recursive=True)
    assert (second[0], second[1]) == (2, "")
    assert (
        second[2] == f"error: --to: {bucket}/policies/last exists and is not empty; remove it, or name another place\n"
    )
    assert files(tmp_path / "fetched") == files(run.exports / "40")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "fetched")
    expected = AutoModelForCausalLM.from_pretrained(run.exports / "40").state_dict()
    assert all(tensor.equal(expected[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_the_real_command_needs_neither_ray_nor_data(run: LiveRun, tmp_path: Path):
    code = (
        "import sys; from agentrl.runners import export; status = export.main(); "
        "assert not {'ray', 'fastapi', 'vllm'} & set(sys.modules); sys.exit(status)"
    )
    words = ["--best", *run.words(), "--to", str(tmp_path / "out"), "actor.num_workers=2"]
    ended = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == f"policy of step 20, validation accuracy 0.500: {tmp_path / 'out'}\n"
    assert "Warning" not in ended.stderr
    assert files(tmp_path / "out") == files(run.exports / "20")
