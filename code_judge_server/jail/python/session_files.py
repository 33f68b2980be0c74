"""Files of a session's cell: written before it from a memfd, copied after it to another memfd.

Runs inside the jail, with the rights of the session's own code; the server bounds what it accepts.
"""

import os
import stat

_FOLDER = "/sandbox"
"""Folder of the session, whatever a cell's current folder is."""


def write_files(contents: int, sizes: list[int]) -> list[str]:
    """Write the files in `contents`, which are followed by their names, below the session's folder.

    Returns:
        The names of the files to collect.

    Raises:
        OSError: the disk quota is used up, or a path is a folder.
    """
    offset = sum(sizes)
    names = os.pread(contents, os.fstat(contents).st_size - offset, offset).decode().split("\0")[:-1]
    offset = 0
    for name, size in zip(names, sizes, strict=False):
        path = f"{_FOLDER}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb", opener=_open_executable) as target:
            target.write(os.pread(contents, size, offset))
        offset += size
    return names[len(sizes) :]


def collect_files(paths: list[str], max_bytes: int, target: int) -> list[list[int | None]]:
    """Copy the regular files of `paths` to `target`, one after the other, up to `max_bytes`.

    Returns:
        `[index, size]` of each file, its index in `paths`; no size if there was no room for it.
    """
    collected: list[list[int | None]] = []
    room = max_bytes
    for index, path in enumerate(paths):
        try:
            with open(f"{_FOLDER}/{path}", "rb", opener=_open_without_blocking) as source:
                status = os.fstat(source.fileno())
                if not stat.S_ISREG(status.st_mode):
                    continue
                content = source.read(room + 1) if status.st_size <= room else None
        except OSError:
            continue
        if content is None or len(content) > room:
            collected.append([index, None])
            continue
        _write(target, content)
        room -= len(content)
        collected.append([index, len(content)])
    return collected


def _open_executable(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o755)


def _open_without_blocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _write(target: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(target, view) :]
