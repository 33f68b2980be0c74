"""The folders of checkpoints, on disk and in a real object store."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from agentrl.checkpoints import store as module
from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.store import CheckpointStore
from agentrl.errors import CheckpointError
from tests.object_store import object_store


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with object_store() as url:
        yield url


@pytest.fixture(params=["disk", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "disk":
        return str(tmp_path / "checkpoints")
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name}"


def write(store: CheckpointStore, step: int, *, accuracy: float | None = None) -> None:
    folder = store.begin(step)
    with fsspec.open(f"{folder}/actor/weights", "wb", auto_mkdir=True) as file:
        file.write(f"weights of {step}".encode())  # pyright: ignore[reportAttributeAccessIssue]
    store.commit(RunState(step=step, prompts_taken=12 * step, accuracy=accuracy))


def steps(store: CheckpointStore) -> list[int]:
    return [state.step for state in store.states()]


def test_the_newest_checkpoint_comes_back_with_its_state(url: str):
    store = CheckpointStore(url)
    assert store.latest() is None
    write(store, 9)
    write(store, 10, accuracy=0.5)
    reopened = CheckpointStore(url)
    assert reopened.latest() == RunState(step=10, prompts_taken=120, accuracy=0.5)
    assert reopened.read(10, "actor/weights", bytes) == b"weights of 10"


def test_what_was_being_written_does_not_count_and_is_cleared_away(url: str):
    store = CheckpointStore(url)
    write(store, 1)
    store.begin(2)
    store.put(2, "pass_rates.json", b"{}")
    assert steps(store) == [1]
    store.clear_leftovers()
    assert steps(store) == [1]
    with pytest.raises(CheckpointError, match=r"step_000002 is damaged: `pass_rates.json` is missing"):
        store.read(2, "pass_rates.json", bytes)


def test_a_step_that_is_written_again_does_not_count_until_it_is_whole(url: str):
    store = CheckpointStore(url)
    write(store, 3)
    store.begin(3)
    assert steps(store) == []
    write(store, 3)
    assert steps(store) == [3]


def test_the_last_the_best_and_the_pinned_ones_are_kept(url: str):
    store = CheckpointStore(url)
    for step, accuracy in enumerate([0.1, 0.9, 0.3, None, 0.9, 0.2, 0.4, None], start=1):
        write(store, step, accuracy=accuracy)
    store.prune(keep_last=2, keep_best=1, pinned={3})
    assert steps(store) == [3, 5, 7, 8]
    store.prune(keep_last=1, keep_best=0)
    assert steps(store) == [8]


def test_a_folder_of_files_goes_in_and_comes_out(url: str, tmp_path: Path):
    store, source = CheckpointStore(url), tmp_path / "source"
    source.mkdir()
    (source / "groups.json").write_text("[]")
    (source / "000000017.jsonl").write_text("{}\n")
    store.begin(1)
    store.put_folder(1, "rollouts", source)
    store.fetch_folder(1, "rollouts", tmp_path / "target")
    assert {file.name: file.read_text() for file in (tmp_path / "target").iterdir()} == {
        "groups.json": "[]",
        "000000017.jsonl": "{}\n",
    }


def test_the_owner_of_checkpoints_is_written(url: str):
    store = CheckpointStore(url)
    assert store.owner() is None
    assert store.inputs() is None
    store.claim(b"run: {seed: 1}", b"{}")
    assert CheckpointStore(url).owner() == b"run: {seed: 1}"
    assert CheckpointStore(url).inputs() == b"{}"
    assert steps(store) == []


def test_a_bucket_with_another_name_is_reported_and_not_created(bucket: str):
    store = CheckpointStore("s3://typo/run")
    for write_first in (store.take_over, lambda: store.claim(b"", b"")):
        with pytest.raises(
            CheckpointError, match=r"^checkpoint\.dir: s3://typo/run cannot be used: .*bucket does not exist"
        ):
            write_first()
    assert fsspec.filesystem("s3").ls("") == [bucket.removeprefix("s3://")]


class OnlyRead(fsspec.AbstractFileSystem):
    """Refuses to write as fsspec's own `github://` does."""

    protocol = "onlyread"

    def _open(self, *arguments: Any, **options: Any) -> Any:
        raise FileNotFoundError if options.get("mode", "rb") == "rb" else NotImplementedError


def test_a_store_that_can_only_be_read_is_a_checkpoint_error_with_its_url():
    fsspec.register_implementation("onlyread", OnlyRead, clobber=True)
    store = CheckpointStore("onlyread://runs")
    assert store.owner() is None
    with pytest.raises(CheckpointError, match=r"checkpoint.dir: onlyread://runs cannot be used: NotImplementedError"):
        store.take_over()


def test_an_older_run_that_still_lives_writes_nothing_more_that_counts(url: str, tmp_path: Path):
    older, newer = CheckpointStore(url), CheckpointStore(url)
    older.take_over()
    write(older, 1)
    older.begin(2)
    newer.take_over()
    newer.clear_leftovers()
    for attempt in (
        lambda: older.commit(RunState(step=2)),
        lambda: older.begin(3),
        lambda: older.put(2, "pass_rates.json", b"{}"),
        lambda: older.put_folder(2, "rollouts", tmp_path),
        lambda: older.prune(keep_last=1, keep_best=0),
    ):
        with pytest.raises(CheckpointError, match=r"another run has taken over .*this one stops writing"):
            attempt()
    assert steps(newer) == [1]
    write(newer, 2)
    assert steps(newer) == [1, 2]


def test_a_checkpoint_is_not_completed_by_a_run_that_was_taken_over_while_its_files_went_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    older, newer = CheckpointStore(str(tmp_path)), CheckpointStore(str(tmp_path))
    older.take_over()
    older.begin(2)

    def sync_slowly(_: Path) -> None:
        if not newer._id:
            newer.take_over()
            newer.clear_leftovers()
            newer.begin(2)

    monkeypatch.setattr(module, "sync", sync_slowly)
    with pytest.raises(CheckpointError, match="another run has taken over"):
        older.commit(RunState(step=2))
    assert steps(newer) == []


def test_a_store_that_has_not_taken_over_writes_nothing_where_one_has(url: str):
    CheckpointStore(url).take_over()
    with pytest.raises(CheckpointError, match="another run has taken over"):
        CheckpointStore(url).begin(1)


def test_a_disk_that_fails_in_mid_run_is_a_checkpoint_error_with_the_folder(tmp_path: Path):
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    store.take_over()
    write(store, 1)
    store.begin(2)
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").touch()
    for attempt in (lambda: store.put(2, "pass_rates.json", b"{}"), lambda: store.begin(3), store.owner):
        with pytest.raises(CheckpointError, match=r"/checkpoints cannot be used: .*the same command resumes"):
            attempt()


def test_a_server_that_has_stopped_is_a_checkpoint_error_with_its_url(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with object_store() as url:
        store = CheckpointStore(f"{url}/gone")
        store.take_over()
        store.begin(1)
    for attempt in (lambda: store.commit(RunState(step=1)), store.latest, store.owner):
        with pytest.raises(CheckpointError, match=r"s3://checkpoints/gone cannot be used: \w+: "):
            attempt()


def test_a_bug_of_ours_stays_what_it_is(tmp_path: Path):
    wrong: Any = object()
    with pytest.raises(AttributeError):
        CheckpointStore(str(tmp_path)).commit(wrong)
