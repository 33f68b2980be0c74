"""The tests of the jail again as an ordinary user, without root's rights."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ordinary_user import as_ordinary_user

HERE = Path(__file__).parents[1]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests ran as an ordinary user already")
@pytest.mark.parametrize("name", ["isolation", "limits", "lifecycle", "collecting", "clearing"])
def test_the_jail_holds_for_an_ordinary_user(tmp_path: Path, name: str):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        str(HERE / "jail" / f"test_jail_{name}.py"),
    ]
    done = subprocess.run(
        as_ordinary_user([*command, "--basetemp", str(tmp_path / "base")], folder=tmp_path),
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
