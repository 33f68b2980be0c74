"""The folder a program runs in: made fresh for each, and removed whatever the program left there.

The program may have put a link in the place of its folder, so that nothing here goes by a path below the folder's parent: each
folder is opened by its name in the one that holds it, and never through a link.
"""

import os
import stat

_NO_LINK = os.O_DIRECTORY | os.O_NOFOLLOW


def ensure(folder: str, *, lets_users_through: bool = False) -> None:
    """Make a folder of the judge's own if it is missing, whatever a program put in its place, and set its rights.

    The rights of a folder that has them already do not change for a moment: programs of other slots may be on their way
    through it.

    Args:
        folder: Path of it.
        lets_users_through: Open the way to folders below it to every user; else it is closed to all but its own.

    Raises:
        OSError: it cannot be made.
    """
    try:
        os.mkdir(folder, stat.S_IRWXU)
    except FileNotFoundError:
        ensure(os.path.dirname(folder), lets_users_through=lets_users_through)
        os.mkdir(folder, stat.S_IRWXU)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(folder).st_mode):
            os.unlink(folder)
            os.mkdir(folder, stat.S_IRWXU)
    if lets_users_through:
        let_users_through(folder)
    else:
        os.chmod(folder, stat.S_IRWXU)


def let_users_through(folder: str) -> None:
    """Open the way to folders below `folder` to every user, whatever a program did to the rights.

    Raises:
        OSError: it is not there, or another user's.
    """
    os.chmod(folder, stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH)


def make(folder: str, files: dict[str, bytes]) -> None:
    """Make `folder` with these executable files in it, in place of what an earlier program may have left under that name.

    Raises:
        OSError: there is no folder to make it in, or the disk is full.
    """
    remove(folder)
    os.mkdir(folder, stat.S_IRWXU)
    for name, content in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), stat.S_IRWXU, exist_ok=True)
        with open(path, "xb", opener=_open_executable) as file:
            file.write(content)


def _open_executable(path: str, flags: int) -> int:
    return os.open(path, flags, stat.S_IRWXU)


def collect(folder: str, paths: list[str], *, max_bytes: int) -> tuple[dict[str, bytes], bool]:
    """Return the contents of those of `paths`, relative to `folder`, that are regular files reached through no link.

    Args:
        folder: Where a program ran, of which nothing is left.
        paths: What to look for.
        max_bytes: Size of all contents together; a file that does not fit is left out.

    Returns:
        The contents by path, and whether any was left out because it did not fit.
    """
    found: dict[str, bytes] = {}
    any_left_out = False
    for path in paths:
        try:
            content = _read_regular_file(folder, path.split("/"), max_bytes=max_bytes)
        except OSError:
            continue  # not there, a link, or the program took away the right to read it
        except _TooLargeError:
            any_left_out = True
            continue
        if content is not None:
            max_bytes -= len(content)
            found[path] = content
    return found, any_left_out


class _TooLargeError(Exception):
    """A file does not fit."""


def _read_regular_file(folder: str, parts: list[str], *, max_bytes: int) -> bytes | None:
    """Return the content of the file, or None if it is no regular file.

    Raises:
        _TooLargeError: it has more than `max_bytes`.
        OSError: a part of the path is missing or is a link.
    """
    opened = os.open(folder, _NO_LINK | os.O_RDONLY)
    try:
        for part in parts:
            flags = _NO_LINK if part is not parts[-1] else os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block here
            following = os.open(part, flags | os.O_RDONLY, dir_fd=opened)
            os.close(opened)
            opened = following
        status = os.fstat(opened)
        if not stat.S_ISREG(status.st_mode):
            return None
        if status.st_size > max_bytes:
            raise _TooLargeError
        with open(opened, "rb", closefd=False) as file:
            return file.read(status.st_size)
    finally:
        os.close(opened)


def remove(folder: str) -> None:
    """Remove `folder`, if it is there, and all below it, however deep: no link is followed and nothing recurses.

    What is there instead of a folder, such as a link, is removed itself.
    """
    parent_path, name = os.path.split(folder)
    try:
        parent = os.open(parent_path, _NO_LINK | os.O_RDONLY)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _remove_entry(name, parent=parent)
    finally:
        os.close(parent)


def clear(folder: str) -> None:
    """Remove all that is in `folder`, as `remove` does, and what a `remove` there that was cut short has left.

    Raises:
        OSError: `folder` is not there.
    """
    for name in os.listdir(folder):
        remove(os.path.join(folder, name))


def _remove_entry(name: str, *, parent: int) -> None:
    """Remove the entry `name` of the open folder `parent`."""
    try:
        _permit(name, parent=parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
        return
    pending = [name]
    while pending:
        current = pending.pop()
        pending += _empty(current, parent=parent)
        os.rmdir(current, dir_fd=parent)


def _empty(name: str, *, parent: int) -> list[str]:
    """Empty the folder `name`; its folders are moved up into `parent`, so that no depth is ever walked.

    Returns:
        The new names of the moved folders; random, so that a program cannot have taken them.
    """
    moved: list[str] = []
    opened = os.open(name, _NO_LINK | os.O_RDONLY, dir_fd=parent)
    try:
        with os.scandir(opened) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    _permit(entry.name, parent=opened)  # a folder without write permission cannot be moved
                    moved.append(f"moved-{os.urandom(8).hex()}")
                    os.rename(entry.name, moved[-1], src_dir_fd=opened, dst_dir_fd=parent)
                else:
                    os.unlink(entry.name, dir_fd=opened)
    finally:
        os.close(opened)
    return moved


def _permit(name: str, *, parent: int) -> None:
    """Give this user every right to the folder `name`.

    Raises:
        FileNotFoundError: there is nothing of that name.
        NotADirectoryError: it is something else, such as a link.
    """
    itself = os.open(name, _NO_LINK | os.O_PATH, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{itself}", stat.S_IRWXU)  # by name it would follow a link
    finally:
        os.close(itself)
