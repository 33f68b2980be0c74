"""Files of a checkpoint that counts are cut off, overwritten or removed: what the store and the command say."""

import sys
from pathlib import Path

import orjson
import pytest

from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.store import CheckpointStore
from agentrl.checkpoints.writer import PASS_RATES
from agentrl.config.load import load_run_config
from agentrl.data.pass_rates import PassRates
from agentrl.errors import DamagedCheckpointError
from agentrl.run.plan import prepare
from agentrl.runners import rstar2

STEPS = (10, 20)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run of the demo that ended with two checkpoints; they hold what is read before any process starts."""
    directory = prepare(load_run_config("configs/demo.yaml", words(tmp_path / "run"))).directory
    for step in STEPS:
        directory.checkpoints.begin(step)
        directory.checkpoints.put(step, PASS_RATES, PassRates({"a": 0.5}).encode())
        directory.checkpoints.commit(RunState(step=step, prompts_taken=12 * step))
    directory.close()
    return directory.path


def words(run_dir: Path) -> list[str]:
    return [f"run.dir={run_dir}", "run.num_steps=30"]


def store_of(run_dir: Path) -> CheckpointStore:
    return CheckpointStore(str(run_dir / "checkpoints"))


def newest(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "step_000020"


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def without(key: str, content: bytes) -> bytes:
    return orjson.dumps({name: value for name, value in orjson.loads(content).items() if name != key})


DAMAGES = {
    "a cut state": ("state.json", cut),
    "an empty state": ("state.json", lambda _: b""),
    "a state without a key": ("state.json", lambda content: without("accuracy", content)),
    "a state that is a list": ("state.json", lambda _: b"[]"),
    "cut pass rates": (PASS_RATES, cut),
    "pass rates without a key": (PASS_RATES, lambda content: without("rates", content)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_command_names_the_damaged_file_and_the_way_out_in_one_line(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], damage: str
):
    name, change = DAMAGES[damage]
    file = newest(run_dir) / name
    file.write_bytes(change(file.read_bytes()))
    before = {path: path.read_bytes() for path in newest(run_dir).iterdir()}
    monkeypatch.setattr(sys, "argv", ["rstar2", "configs/demo.yaml", *words(run_dir)])
    assert rstar2.main() == 1
    errors = capsys.readouterr().err
    assert errors.startswith(f"error: checkpoint {newest(run_dir)} is damaged: `{name}` cannot be read (")
    assert "Remove the whole folder of that step, and the run goes on from the one before it; if there is" in errors
    assert errors.count("\n") == 1
    assert {path: path.read_bytes() for path in newest(run_dir).iterdir()} == before, "it is no leftover"


def test_a_damaged_checkpoint_is_neither_passed_over_nor_deleted(run_dir: Path):
    (newest(run_dir) / "state.json").write_bytes(b"\xff")
    store = store_of(run_dir)
    store.take_over()
    for look in (
        store.latest,
        store.states,
        store.clear_leftovers,
        lambda: store.prune(keep_last=1, keep_best=0),
    ):
        with pytest.raises(DamagedCheckpointError, match=r"step_000020 is damaged: `state\.json`"):
            look()
    assert [folder.name for folder in sorted(newest(run_dir).parent.glob("step_*"))] == ["step_000010", "step_000020"]


def test_the_way_out_is_one(run_dir: Path):
    (newest(run_dir) / "state.json").write_bytes(b"")
    for file in newest(run_dir).iterdir():
        file.unlink()
    newest(run_dir).rmdir()
    assert store_of(run_dir).latest() == RunState(step=10, prompts_taken=120)


def test_a_folder_without_its_last_file_is_a_leftover(run_dir: Path):
    (newest(run_dir) / "state.json").unlink()
    store = store_of(run_dir)
    assert store.latest() == RunState(step=10, prompts_taken=120)
    store.clear_leftovers()
    assert not newest(run_dir).exists()


def test_what_is_missing_from_one_that_counts_is_named(run_dir: Path, tmp_path: Path):
    store = store_of(run_dir)
    (newest(run_dir) / PASS_RATES).unlink()
    with pytest.raises(DamagedCheckpointError, match=r"step_000020 is damaged: `pass_rates.json` is missing\. Remove"):
        store.read(20, PASS_RATES, PassRates.decode)
    with pytest.raises(DamagedCheckpointError, match=r"step_000020 is damaged: `rollouts` is missing\. Remove"):
        store.fetch_folder(20, "rollouts", tmp_path / "rollouts")
