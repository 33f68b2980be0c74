"""The folder a program runs in: made fresh for each, and removed whatever the program left there."""

import os
import stat
from itertools import count


def make(folder: str, files: dict[str, bytes]) -> None:
    """Make `folder` with these files in it.

    Raises:
        OSError: it exists, or the disk is full.
    """
    os.mkdir(folder, 0o700)
    for name, content in files.items():
        with open(os.path.join(folder, name), "xb") as file:
            file.write(content)


def remove(folder: str) -> None:
    """Remove `folder` and all below it, however deep: no link is followed and nothing recurses.

    Each folder found below is moved to the top before it is looked into, so that no path grows long.
    """
    names = count()
    pending = [folder]
    while pending:
        current = pending.pop()
        os.chmod(current, stat.S_IRWXU)
        with os.scandir(current) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    os.chmod(entry.path, stat.S_IRWXU)  # a folder without write permission cannot be moved
                    moved = f"{folder}.{next(names)}"
                    os.rename(entry.path, moved)
                    pending.append(moved)
                else:
                    os.unlink(entry.path)
        os.rmdir(current)
