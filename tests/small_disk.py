"""A disk with little room (a tmpfs), for tests of what is said when there is none left."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SIZE_BYTES = 2**20


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount 1 MiB on a folder that is made here; skips the test where that is refused, as it is to ordinary users."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_SIZE_BYTES}", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(disk: Path, *, leave_bytes: int) -> None:
    """Write a file that takes the room of a small disk but for `leave_bytes`, in whole pages."""
    room = os.statvfs(disk)
    with (disk / "fill").open("wb") as file:
        file.write(b"\1" * (room.f_bavail * room.f_bsize - leave_bytes))
