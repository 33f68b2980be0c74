"""Stores that fsspec reaches by URL, for checkpoints and exported policies."""

from typing import Any

from fsspec.core import url_to_fs

from agentrl.errors import ConfigError

_WITH_BUCKETS = {"abfs", "abfss", "az", "gcs", "gs", "oci", "oss", "s3", "s3a"}
"""Protocols whose packages take the first part of a path for a bucket, and create one that does not exist."""


def open_store(url: str, *, key: str) -> tuple[Any, str]:
    """Return the file system (of fsspec) of a path or URL, and the path in it.

    Addresses and keys come from the environment. Some packages connect here, those of object stores at their first use.

    Raises:
        ConfigError: no installed package can reach it, or its package cannot connect. The message begins with `key`.
    """
    try:
        return url_to_fs(url)
    except Exception as error:  # packages of stores raise any class
        raise ConfigError(
            f"{key}: {url} cannot be reached: {type(error).__name__}: {' '.join(str(error).split())}. Check its address, "
            "install the package of that store (`pip install '.[s3]'` for `s3://`), or name a folder."
        ) from error


def make_folder(files: Any, path: str) -> None:
    """Create a folder in a store; nothing in object stores, which have none, and would create a mistyped bucket."""
    protocols = {files.protocol} if isinstance(files.protocol, str) else set(files.protocol)
    if not protocols & _WITH_BUCKETS:
        files.makedirs(path, exist_ok=True)
