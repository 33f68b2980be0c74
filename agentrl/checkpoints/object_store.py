"""Stores of files that a URL names: which of them may hold checkpoints and policies, and one line where one may not."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fsspec.core import get_filesystem_class, split_protocol, url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from agentrl.errors import ConfigError

_VIEWS = {
    "async_wrapper",
    "asyncwrapper",
    "blockcache",
    "cached",
    "data",
    "dir",
    "filecache",
    "generic",
    "libarchive",
    "reference",
    "simplecache",
    "tar",
    "zip",
}
"""Protocols of fsspec that show what is elsewhere, or in the URL itself, and hold nothing of their own."""

_WITH_BUCKETS = {"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
"""Protocols whose packages take the first part of a path for a bucket, and make one that is not there."""


def open_store(url: str, *, key: str) -> tuple[Any, str]:
    """Return the file system (of fsspec) of a path or URL, and the path in it.

    Addresses and keys come from the environment. Some packages connect here, those of object stores when they are first used.

    Args:
        url: what is given.
        key: where it was given, for the message.

    Raises:
        ConfigError: see `check_url`; or its package cannot connect.
    """
    check_url(url, key=key)
    with _refusing_unreachable(url, key=key):
        files, path = url_to_fs(url)
    if isinstance(files, LocalFileSystem):
        refuse_file_in_the_way(Path(path), key=key)
    return files, path


def refuse_file_in_the_way(folder: Path, *, key: str) -> None:
    """Refuse a folder that is a file, or that leads through one.

    Raises:
        ConfigError: with the file.
    """
    present = next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))
    if not os.path.isdir(present):
        raise ConfigError(f"{key}: {folder} cannot be used: {present} is a file; name another `{key}`")


def refuse_missing_bucket(files: Any, path: str, *, url: str, key: str) -> None:
    """Check that there is the bucket of a path, for a mistyped one would be made.

    Args:
        files: the file system, as `open_store` returned it.
        path: the path in it, likewise.
        url: what was given to it.
        key: where it was given, for the message.

    Raises:
        ConfigError: there is no such bucket.
        Exception: of whatever the package raises where the store does not answer, or shows nobody with these keys the bucket.
    """
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if not protocols & _WITH_BUCKETS:
        return
    # Names of S3's access points have slashes.
    bucket = files.split_path(path)[0] if protocols & {"s3", "s3a"} else path.partition("/")[0]
    if files.exists(bucket):
        return
    try:
        files.info(bucket)  # as `exists` takes a store that does not answer for one without the bucket
    except FileNotFoundError as error:
        raise ConfigError(
            f"{key}: {url} is in a bucket `{bucket}` that is not there, or not to be seen with these keys. Look at its name, "
            "or make it first: no bucket is made here."
        ) from error


def check_url(url: str, *, key: str) -> None:
    """Check that files can be kept at such a URL; nothing is asked there.

    Raises:
        ConfigError: no installed package can reach it, it is none but a view of another store, or only the process that
            writes can see it.
    """
    protocol = split_protocol(url)[0] or "file"
    joins = "::" in protocol
    if "::" in url and not joins and protocol not in _VIEWS:
        raise ConfigError(f"{key}: {url} has `::` in it, which joins stores for fsspec. Name a folder without it.")
    if joins or protocol in _VIEWS:
        # A cache is no gain for what is written once and read by others, and what it keeps hides that a second run has taken
        # the folder over.
        raise ConfigError(
            f"{key}: {url} is a cache, an archive or another view of a store (`{protocol}`), where a process would not see "
            "what others have written. Name the store itself, such as `s3://bucket/runs/demo`, or a folder."
        )
    with _refusing_unreachable(url, key=key):
        kind = get_filesystem_class(protocol)
    if issubclass(kind, MemoryFileSystem):
        raise ConfigError(
            f"{key}: {url} is in the memory of each process by itself: no other process, such as the ranks of a run, would see "
            "it, and nothing of it would outlast them. Name a folder, or a store such as `s3://bucket/runs/demo`."
        )


@contextmanager
def _refusing_unreachable(url: str, *, key: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of any kind: the constructor of each package raises what it likes
        raise ConfigError(
            f"{key}: {url} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}. Look at its address, "
            "install the package of that store (`pip install '.[s3]'` for `s3://`), or name a folder."
        ) from error
