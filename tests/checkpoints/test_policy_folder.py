"""The trained policy is exchanged as a whole, whatever stands in its place."""

import errno
from pathlib import Path

import pytest

from agentrl.checkpoints.policy_folder import PolicyFolder
from agentrl.config.load import load_run_config
from agentrl.errors import CheckpointError, ConfigError
from agentrl.run.directory import RunDirectory
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
        (policy.path.parent / "policy.replaced").touch()  # by a run that was killed before it removed that
        policy.take()
        assert [file.name for file in policy.path.parent.iterdir()] == ["policy"]


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_to_a_place_with_more_room_stays_and_what_it_names_is_exchanged(
    policy: PolicyFolder, tmp_path: Path, exists: bool
):
    big = tmp_path / "big" / "trained"
    big.parent.mkdir()
    if exists:
        big.mkdir()
        (big / "stale.json").touch()
    policy.path.symlink_to(big)
    write(policy, "new")
    policy.take()
    assert policy.path.readlink() == big
    assert [file.name for file in big.iterdir()] == ["config.json"]
    assert [file.name for file in big.parent.iterdir()] == ["trained"]


def test_what_lies_beside_that_which_a_link_names_is_left_alone(policy: PolicyFolder, tmp_path: Path):
    big = tmp_path / "big" / "trained"
    beside = [big.with_name(f"trained.{kind}") for kind in ("partial", "replaced")]
    for folder in (big, *beside):
        folder.mkdir(parents=True)
        (folder / "theirs").touch()
    (tmp_path / "other").mkdir()
    other = PolicyFolder(tmp_path / "other" / "policy")
    for kept in (policy, other):
        kept.path.symlink_to(big)
    write(policy, "of this run")
    write(other, "of another run")
    policy.take()
    assert (big / "config.json").read_text() == "of this run"
    assert all((folder / "theirs").exists() for folder in beside)


def test_a_file_in_the_place_of_the_policy_is_replaced_however_often(policy: PolicyFolder):
    for content in ("first", "second"):
        if policy.path.is_dir():
            policy.path.rename(policy.path.parent.parent / content)
        policy.path.touch()
        write(policy, content)
        policy.take()
        assert (policy.path / "config.json").read_text() == content
        assert [file.name for file in policy.path.parent.iterdir()] == ["policy"]


def test_the_target_of_a_link_in_the_place_of_the_new_policy_is_neither_used_nor_removed(
    policy: PolicyFolder, tmp_path: Path
):
    (tmp_path / "stale").mkdir()
    (tmp_path / "stale" / "stale.json").touch()
    policy.begin().symlink_to(tmp_path / "stale")
    write(policy, "new")
    policy.take()
    assert not policy.path.is_symlink()
    assert [file.name for file in policy.path.iterdir()] == ["config.json"]
    assert (tmp_path / "stale" / "stale.json").exists()


def test_a_mount_in_the_place_of_the_policy_is_refused_before_anything_starts(tmp_path: Path):
    loaded = load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}"])
    first = RunDirectory(loaded.config)
    first.open({}, trains=True)
    first.close()
    (tmp_path / "run" / "policy").symlink_to("/proc")
    with pytest.raises(ConfigError, match=r"^run\.dir: a disk is mounted on /proc, .*Unmount it, or name another"):
        RunDirectory(loaded.config).open({}, trains=True)
    RunDirectory(loaded.config).open({}, trains=False)  # an evaluation writes no policy


def test_a_mount_that_appears_during_the_run_is_reported_with_its_way_out(policy: PolicyFolder):
    with small_disk(policy.path):
        write(policy, "new")
        with pytest.raises(CheckpointError, match=r"run/policy cannot be replaced: Device or resource busy\. Unmount"):
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
