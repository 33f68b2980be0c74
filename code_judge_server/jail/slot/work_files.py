"""The files of a job: written before it from a memfd, copied after it to another memfd, by a process with the job's rights."""

import contextlib
import errno
import os
import stat

from code_judge_server.jail.kernel import syscalls


def read_names(contents: int, sizes: list[int]) -> list[str]:
    """Return the names that follow the files of these sizes in `contents`: their own, then those of the files to collect."""
    start = sum(sizes)
    names = os.pread(contents, os.fstat(contents).st_size - start, start)
    return [name.decode() for name in names.split(b"\0")[:-1]]


def write_files(contents: int, sizes: list[int]) -> None:
    """Write the files in `contents`, which are followed by their names, below the current folder, executable.

    Raises:
        OSError: the disk quota is used up, or a path is a folder.
        IndexError: `contents` is not valid.
    """
    offset = 0
    names = read_names(contents, sizes) if sizes else []
    for number, size in enumerate(sizes):
        path = names[number]
        if "/" in path:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o755)
        end = offset + size
        while offset < end:
            copied = os.sendfile(target, contents, offset, end - offset)
            if copied == 0:
                raise OSError(errno.EIO, f"the memfd of the files ends {end - offset} bytes early")
            offset += copied
        os.close(target)


def collect_files(paths: list[str], max_bytes: int, target: int) -> list[list[int | None]]:
    """Copy regular files below the current folder to `target`, one after the other, up to `max_bytes`.

    Missing files, links, devices, sockets and pipes, and files behind a link, are left out: no link is followed, and nothing
    blocks.

    Returns:
        `[index, size]` of each file, its index in `paths`; no size if there was no room for it.
    """
    collected: list[list[int | None]] = []
    folder = os.open(".", os.O_DIRECTORY | os.O_PATH | os.O_CLOEXEC)
    free = max_bytes
    for index, path in enumerate(paths):
        with contextlib.suppress(OSError):
            source = syscalls.open_beneath(folder, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY)
            try:
                status = os.fstat(source)
                if not stat.S_ISREG(status.st_mode):
                    continue
                size = _copy(source, target, status.st_size) if status.st_size <= free else None
                free -= size or 0
                collected.append([index, size])
            finally:
                os.close(source)
    os.close(folder)
    return collected


def _copy(source: int, target: int, size: int) -> int:
    copied = 0
    while copied < size:
        step = os.sendfile(target, source, copied, size - copied)
        if step == 0:
            break  # the file shrank meanwhile
        copied += step
    return copied
