"""Field types that several formats of the judge share: names, texts, paths and file contents."""

import base64
import binascii
from collections.abc import Collection
from itertools import pairwise
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, FailFast, Field, PlainSerializer, WithJsonSchema


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    return text


Identifier = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_without_nul)]
SourceText = Annotated[str, AfterValidator(_without_nul)]
"""Source code without NUL characters, which no compiler or interpreter accepts."""
_Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9+#_.-]+$")]
LanguageName = _Name
"""A language of the server's table, such as `python` or `cpp`."""
PreloadName = _Name
"""A module set of warm interpreters, such as `sci`."""


_NO_NAMES = frozenset({b"", b".", b".."})


def _inside_the_work_folder(path: str) -> str:
    parts = path.encode().split(b"/") if len(path) <= 1024 else []
    if not 1 <= len(parts) <= 16 or not _NO_NAMES.isdisjoint(parts) or max(map(len, parts)) > 255:
        raise ValueError("must be a relative path of plain names, at most 16 deep")
    return path


FilePath = Annotated[str, AfterValidator(_without_nul), AfterValidator(_inside_the_work_folder)]
"""Path of a file below the program's folder."""


def check_folders(paths: Collection[str]) -> None:
    """Check that these paths can exist together.

    Raises:
        ValueError: a path would be both a file and a folder.
    """
    if len(paths) < 2:
        return
    # The separator sorts below every other character, so the contents of a folder follow it directly.
    for parent, path in pairwise(sorted(path.replace("/", "\0") for path in paths)):
        if path.startswith(parent + "\0"):
            folder, file = parent.replace("\0", "/"), path.replace("\0", "/")
            raise ValueError(f"`files`: `{folder}` cannot be a file and the folder of `{file}`")


def _from_base64(content: object) -> object:
    if not isinstance(content, str):
        return content
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"must be standard base64 without line breaks: {error}") from error


def _to_base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")


FileContent = Annotated[
    bytes,
    BeforeValidator(_from_base64),
    PlainSerializer(_to_base64, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "contentEncoding": "base64", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}),
]
"""Bytes in Python, base64 in JSON (pydantic's `Base64Bytes` would break it into lines)."""


_MAX_FILES = 1024


def _not_too_many(files: object) -> object:
    if isinstance(files, dict) and len(files) > _MAX_FILES:  # before validating each file
        raise ValueError(f"must be at most {_MAX_FILES} files, not {len(files)}")
    return files


GivenFiles = Annotated[dict[FilePath, FileContent], Field(max_length=_MAX_FILES), BeforeValidator(_not_too_many)]
"""Files by relative path."""
Collected = Annotated[list[FilePath], FailFast(), Field(max_length=64)]
"""Paths of files to bring back."""


_Argument = Annotated[str, Field(max_length=4096), AfterValidator(_without_nul)]
Arguments = Annotated[list[_Argument], FailFast(), Field(max_length=64)]
"""Arguments of a command line."""
