"""Stores that fsspec reaches by URL, for checkpoints and exported policies."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fsspec.core import get_filesystem_class, split_protocol, url_to_fs
from fsspec.implementations.memory import MemoryFileSystem

from agentrl.errors import ConfigError

_WITH_BUCKETS = {"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
"""Protocols whose packages take the first part of a path for a bucket, and create one that does not exist."""


def open_store(url: str, *, key: str) -> tuple[Any, str]:
    """Return the file system (of fsspec) of a path or URL, and the path in it.

    Addresses and keys come from the environment. Some packages connect here, those of object stores at their first use.

    Raises:
        ConfigError: see `check_url`; or its package cannot connect. The message begins with `key`, which names the URL.
    """
    check_url(url, key=key)
    with _refusing_unreachable(url, key=key):
        return url_to_fs(url)


def check_url(url: str, *, key: str) -> None:
    """Check that files can be kept at such a URL; nothing is asked there.

    Raises:
        ConfigError: no installed package can reach it, it joins stores (a cache), or only this process could see its files.
    """
    if "::" in url:
        raise ConfigError(
            f"{key}: {url} has `::` in it, which joins stores for fsspec. Name the store itself, or a folder without it."
        )
    with _refusing_unreachable(url, key=key):
        kind = get_filesystem_class(split_protocol(url)[0] or "file")
    if issubclass(kind, MemoryFileSystem):
        raise ConfigError(
            f"{key}: {url} is in the memory of this process, where no other process of a run can see it. Name a folder, or a "
            "store such as `s3://bucket/runs/demo`."
        )


def make_folder(files: Any, path: str) -> None:
    """Create a folder in a store; nothing in object stores, which have none, and would create a mistyped bucket."""
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if not protocols & _WITH_BUCKETS:
        files.makedirs(path, exist_ok=True)


@contextmanager
def _refusing_unreachable(url: str, *, key: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # packages of stores raise any class
        raise ConfigError(
            f"{key}: {url} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}. Check its address, "
            "install the package of that store (`pip install '.[s3]'` for `s3://`), or name a folder."
        ) from error
