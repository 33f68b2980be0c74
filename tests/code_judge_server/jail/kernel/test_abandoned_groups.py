"""Control groups of a judge that was killed, in another parent group than the next judge's."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from code_judge_server.jail.kernel import folder_lock
from code_judge_server.jail.kernel.cgroups import NoCgroupsError, make_cgroups


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A group beside those of judges that this process starts."""
    try:
        groups = make_cgroups()
    except NoCgroupsError as error:
        pytest.skip(str(error))
    parent = next(iter(groups.folders.values())).parent
    groups.remove()
    folder = parent / f"elsewhere-{secrets.token_hex(4)}"
    folder.mkdir()
    yield folder
    for left in sorted(folder.rglob("*"), reverse=True):
        if left.is_dir():
            left.rmdir()
    folder.rmdir()


def test_groups_of_a_dead_server_are_removed_wherever_it_was_started(elsewhere: Path) -> None:
    dead, living = (elsewhere / f"code-judge-{number}-{secrets.token_hex(4)}" for number in (1, 2))
    for folder in (dead, living):
        (folder / "slot-0").mkdir(parents=True)
    lock = folder_lock.lock(living, folder_lock.SHARED)
    make_cgroups().remove()
    assert not dead.exists()
    assert (living / "slot-0").exists()
    os.close(lock)
