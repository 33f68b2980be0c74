"""A policy is in its place as a whole or not at all, in a folder and in a store."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import fsspec
import pytest

from agentrl.checkpoints.atomic_folder import _put, written_whole
from agentrl.errors import ConfigError
from tests.object_store import object_store
from tests.small_disk import small_disk


def test_a_write_that_fails_is_reported_with_the_way_out_and_leaves_nothing(tmp_path: Path):
    with (
        pytest.raises(ConfigError, match=r"out cannot be written: \[Errno 28\] No space left .*; make room there"),
        written_whole(str(tmp_path / "out")),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_folder_on_which_a_disk_is_mounted_is_reported_with_the_way_out(tmp_path: Path):
    with small_disk(tmp_path / "disk"):
        with (
            pytest.raises(ConfigError, match=r"disk cannot be written: .*Device or resource busy.*name another folder"),
            written_whole(str(tmp_path / "disk")) as partial,
        ):
            (partial / "config.json").touch()
        assert [path.name for path in tmp_path.iterdir()] == ["disk"]


def test_of_two_exports_to_the_same_folder_the_first_to_end_is_kept(tmp_path: Path):
    def export(name: str) -> None:
        with written_whole(str(tmp_path / "out")) as folder:
            (folder / name).touch()
            if name == "second.json":
                export("first.json")

    with pytest.raises(ConfigError, match=r"/out cannot be written: .*Directory not empty.*`--to`"):
        export("second.json")
    assert {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")} == {"out", "out/first.json"}


_KILLED = """
import os, sys
from agentrl.checkpoints.atomic_folder import written_whole
with written_whole(sys.argv[1]) as folder:
    (folder / sys.argv[2]).touch()
    os.kill(os.getpid(), 9)
"""


def test_a_killed_export_leaves_no_policy_and_does_not_hinder_the_next_one(tmp_path: Path):
    out = tmp_path / "out"
    killed = subprocess.run([sys.executable, "-c", _KILLED, str(out), "first"], check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.name.startswith("out.partial-")
    with written_whole(str(out)) as folder:
        (folder / "config.json").touch()
    assert [path.name for path in out.iterdir()] == ["config.json"]


def test_a_folder_that_was_written_has_the_rights_of_any_other(tmp_path: Path):
    with written_whole(str(tmp_path / "out")):
        pass
    (tmp_path / "other").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    for name in ("a.json", "config.json", "model.safetensors", "adapter/adapter_config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    return tmp_path


class Store:
    """Keeps the names of what is put into it."""

    protocol = "s3"

    def __init__(self) -> None:
        self.holds: list[str] = []

    def put_file(self, source: str, target: str) -> None:
        self.holds.append(target)


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


def test_a_store_that_does_not_answer_is_reported_before_anything_is_written(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with object_store() as bucket:
        written = written_whole(f"{bucket}/unreachable")  # its address is taken from the environment when it is entered
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        with pytest.raises(ConfigError, match=r"^--to: s3://.*/unreachable cannot be used: \w+: "), written:
            pytest.fail("it was to be refused")


def test_a_policy_is_put_into_no_bucket_that_has_to_be_made():
    with object_store() as bucket:
        with (
            pytest.raises(ConfigError, match=r"^--to: s3://typo/policy cannot be used: .*bucket does not exist"),
            written_whole("s3://typo/policy"),
        ):
            pytest.fail("it was to be refused")
        assert fsspec.filesystem("s3").ls("") == [bucket.removeprefix("s3://")]


def test_a_full_disk_on_the_way_to_a_store_is_reported_and_nothing_is_put():
    with object_store() as bucket:
        url = f"{bucket}/without_room"
        with (
            pytest.raises(
                ConfigError,
                match=r"files on their way to s3://.* cannot be written: .*No space left.*; let `TMPDIR` name",
            ),
            written_whole(url) as folder,
        ):
            raise OSError(errno.ENOSPC, "No space left on device", str(folder / "model.safetensors"))
        assert fsspec.filesystem("s3").find(url) == []
