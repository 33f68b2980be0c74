"""The trained policy is exchanged as a whole, whatever stands in its place."""

import errno
from pathlib import Path

import pytest

from agentrl.checkpoints.atomic_folder import PolicyFolder
from agentrl.errors import CheckpointError
from tests.small_disk import small_disk


@pytest.fixture
def policy(tmp_path: Path) -> PolicyFolder:
    (tmp_path / "run").mkdir()
    return PolicyFolder(tmp_path / "run" / "policy")


def write(policy: PolicyFolder, content: str) -> None:
    folder = policy.begin()
    folder.mkdir()
    (folder / "config.json").write_text(content)


def test_the_policy_of_a_run_is_complete_or_the_previous_one(policy: PolicyFolder):
    (policy.begin() / "adapter").mkdir(parents=True)
    write(policy, "first")  # the one before was killed
    policy.take()
    assert [file.name for file in policy.path.iterdir()] == ["config.json"]
    write(policy, "second, half written")
    assert (policy.path / "config.json").read_text() == "first"
    policy.begin()
    with pytest.raises(
        CheckpointError, match=r"policy\.partial is not there: the actor, on another node, sees another"
    ):
        policy.take()
    assert (policy.path / "config.json").read_text() == "first"


def test_nothing_is_left_beside_the_policy_of_what_was_replaced(policy: PolicyFolder):
    for content in ("first", "second"):
        write(policy, content)
        policy.take()
        assert [file.name for file in policy.path.parent.iterdir()] == ["policy"]


def test_a_link_in_the_place_of_the_policy_is_replaced_and_its_target_kept(policy: PolicyFolder, tmp_path: Path):
    (tmp_path / "big").mkdir()
    (tmp_path / "big" / "theirs").touch()
    policy.path.symlink_to(tmp_path / "big")
    write(policy, "new")
    policy.take()
    assert not policy.path.is_symlink()
    assert [file.name for file in policy.path.iterdir()] == ["config.json"]
    assert (tmp_path / "big" / "theirs").exists()


def test_a_file_in_the_place_of_the_policy_is_replaced_however_often(policy: PolicyFolder):
    for content in ("first", "second"):
        if policy.path.is_dir():
            policy.path.rename(policy.path.parent.parent / content)
        policy.path.touch()
        write(policy, content)
        policy.take()
        assert (policy.path / "config.json").read_text() == content
        assert [file.name for file in policy.path.parent.iterdir()] == ["policy"]


def test_a_mount_in_the_place_of_the_policy_is_reported_with_the_way_out(policy: PolicyFolder):
    with small_disk(policy.path):
        write(policy, "new")
        with pytest.raises(
            CheckpointError, match=r"run/policy cannot be replaced: Device or resource busy\. Move it away"
        ):
            policy.take()
    policy.take()
    assert (policy.path / "config.json").read_text() == "new"


def test_a_folder_that_cannot_be_replaced_must_be_moved(policy: PolicyFolder, monkeypatch: pytest.MonkeyPatch):
    def refuse(self: Path, target: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    write(policy, "new")
    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(CheckpointError, match=r"policy cannot be replaced: Permission denied\. Move it away; the same"):
        policy.take()
