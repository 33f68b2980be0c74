"""The folder a program runs in: created fresh for each program, and removed whatever the program left in it.

The program may have replaced its folder with a link. So no path below the folder's parent is followed here: each folder is
opened by its name in its parent, and never through a link.
"""

import os
import stat

_NO_LINK = os.O_DIRECTORY | os.O_NOFOLLOW


def ensure(folder: str, *, lets_users_through: bool = False) -> None:
    """Create a folder of the judge itself if it is missing, whatever a program put in its place, and set its rights.

    The rights of a folder that already has them never change, not even for a moment: programs of other slots may be passing
    through it. Unless it `lets_users_through` to folders below it, only its owner can use it.
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
    """Let every user reach folders below `folder`, whatever a program did to its rights."""
    os.chmod(folder, stat.S_IRWXU | stat.S_IXGRP | stat.S_IXOTH)


def make(folder: str, files: dict[str, bytes]) -> None:
    """Create `folder` with these executable files, replacing what an earlier program left under that name."""
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
    """Return the contents of those of `paths`, relative to `folder`, that are regular files reached through no link, and
    whether a file was left out because all together would exceed `max_bytes`.
    """
    contents: dict[str, bytes] = {}
    any_left_out = False
    for path in paths:
        try:
            content = _read_regular_file(folder, path.split("/"), max_bytes=max_bytes)
        except OSError:
            continue  # missing, a link, or made unreadable by the program
        except _TooLargeError:
            any_left_out = True
            continue
        if content is not None:
            max_bytes -= len(content)
            contents[path] = content
    return contents, any_left_out


class _TooLargeError(Exception):
    """A file is larger than allowed."""


def _read_regular_file(folder: str, parts: list[str], *, max_bytes: int) -> bytes | None:
    """Return the content of the file, or None if it is not a regular file.

    Raises:
        _TooLargeError: it has more than `max_bytes`.
        OSError: a part of the path is missing or is a link.
    """
    opened = os.open(folder, _NO_LINK | os.O_RDONLY)
    try:
        for part in parts:
            flags = _NO_LINK if part is not parts[-1] else os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe would block without
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
    """Remove `folder`, if it exists, and everything below it, however deep; without following links and without recursion.

    Anything else of that name, such as a link, is removed itself.
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
    """Remove everything in `folder`, as `remove` does, leftovers of an interrupted `remove` included."""
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
    """Empty the folder `name`, moving its sub-folders up into `parent`, so that no depth is ever walked.

    Returns:
        The new names of the moved folders, which are random, so that a program cannot have taken them.
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
        FileNotFoundError: the folder does not exist.
        NotADirectoryError: it is something else, such as a link.
    """
    itself = os.open(name, _NO_LINK | os.O_PATH, dir_fd=parent)
    try:
        os.chmod(f"/proc/self/fd/{itself}", stat.S_IRWXU)  # by name it would follow a link
    finally:
        os.close(itself)
