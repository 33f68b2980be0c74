"""A policy is in its place as a whole or not at all, in a folder and in a store."""

import errno
from pathlib import Path

import fsspec
import pytest

from agentrl.errors import ConfigError
from agentrl.runners.export_target import _put, place_of, written_whole
from tests.object_store import object_store


def test_a_file_url_is_a_folder(tmp_path: Path):
    assert place_of(f"file://{tmp_path}/out") == f"{tmp_path}/out"
    assert place_of("out") == str(Path("out").resolve())
    assert place_of("s3://bucket/out") == "s3://bucket/out"


def test_a_file_of_the_model_that_cannot_be_read_is_not_taken_for_one_that_cannot_be_written(tmp_path: Path):
    with (
        pytest.raises(ConfigError, match=r"^model\.path: a file of it cannot be read: .*/models/a/tokenizer\.json"),
        written_whole(str(tmp_path / "out")),
    ):
        raise PermissionError(errno.EACCES, "Permission denied", "/models/a/tokenizer.json")
    with (
        pytest.raises(ConfigError, match=r"out cannot be written: .*; make room there"),
        written_whole(str(tmp_path / "out")) as partial,
    ):
        raise PermissionError(errno.EACCES, "Permission denied", str(partial / "config.json"))


class Store:
    """Keeps the names of what is put into it, and has no room for one of them."""

    def __init__(self, *, full_at: str = "") -> None:
        self.full_at = full_at
        self.holds: list[str] = []

    def makedirs(self, path: str, *, exist_ok: bool) -> None: ...

    def put_file(self, source: str, target: str) -> None:
        self.holds.append(target)
        if target == self.full_at:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")

    def rm_file(self, path: str) -> None:
        self.holds.remove(path)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    for name in ("a.json", "config.json", "model.safetensors", "adapter/adapter_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


def test_the_file_that_makes_a_folder_a_model_is_put_last_and_folders_go_as_well(policy: Path):
    store = Store()
    _put(store, policy, "bucket/policy")
    *others, last = store.holds
    assert {name.removeprefix("bucket/policy/") for name in others} == {
        "a.json",
        "model.safetensors",
        "adapter/adapter_config.json",
    }
    assert last == "bucket/policy/config.json"


def test_what_has_been_put_is_taken_back_when_a_later_file_fails(policy: Path):
    store = Store(full_at="bucket/policy/model.safetensors")
    with pytest.raises(OSError, match="quota exceeded"):
        _put(store, policy, "bucket/policy")
    assert store.holds == []


def test_a_store_that_does_not_answer_is_told_before_anything_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with object_store() as bucket:
        written = written_whole(f"{bucket}/unreachable")  # its address is taken from the environment when it is entered
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(ConfigError, match=r"^--to: s3://.*/unreachable cannot be used: \w+: "), written:
            pytest.fail("it was to be refused")


def test_a_policy_is_put_into_no_bucket_that_has_to_be_made():
    with object_store() as bucket:
        with (
            pytest.raises(ConfigError, match=r"^--to: s3://typo/policy is in a bucket `typo` that is not there"),
            written_whole("s3://typo/policy"),
        ):
            pytest.fail("it was to be refused")
        assert fsspec.filesystem("s3").ls("") == [bucket.removeprefix("s3://")]


def test_a_disk_without_room_on_the_way_to_a_store_is_told_as_that_and_nothing_is_put():
    with object_store() as bucket:
        url = f"{bucket}/without_room"
        with (
            pytest.raises(ConfigError, match=r"from where it goes to s3://.*No space left.*; let `TMPDIR` name"),
            written_whole(url) as folder,
        ):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "model.safetensors"))
        assert fsspec.filesystem("s3").find(url) == []
