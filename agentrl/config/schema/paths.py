"""Types of keys that name files, folders or stores: their checks, and the absolute paths that relative ones become.

Paths become absolute only when a config is loaded from a file; `LoadContext` is then the context of the validation.
"""

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo

_PACKAGE_FOLDER = Path(__file__).resolve().parents[2]
_SHIPPED = _PACKAGE_FOLDER / "_shipped"
SHIPPED_FOLDER = _SHIPPED if _SHIPPED.is_dir() else _PACKAGE_FOLDER.parent
"""Folder of `configs/`, `tool_configs/` and `examples/`: beside the package in a checkout, inside it in a wheel."""
_BEGINS_AS_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<rest>.*)", re.DOTALL)
"""Start of a URL; a scheme has at least two letters, so `C:` is none."""
_BEGINS_AS_STORE = re.compile(
    r"(?:[A-Za-z][A-Za-z0-9+.-]*::)*(?:[A-Za-z][A-Za-z0-9+.-]+:/|(?:s3a?|gc?s|abfss?|az|oss|oci|hdfs|hf|https?|s?ftp):)",
    re.IGNORECASE,
)
"""Start of a store's URL: any scheme before a slash, or a known store's scheme without one (folder names may hold colons)."""
_MAX_NAME_BYTES = 255
_MAX_PLACE_BYTES = 4095


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadContext:
    """Context in which a config file is validated."""

    file: Path
    """Absolute path of the file."""
    default_dir: str
    """Value of `run.dir` if it is absent."""


def is_url(place: str) -> bool:
    """Return whether `place` is the URL of a store, such as `s3://bucket/runs/demo`, and not a local folder."""
    return "://" in place


def check_name(place: str) -> str:
    """Return a name for a file or folder that a file system allows.

    Raises:
        ValueError: the name is empty, too long, or holds a null character.
    """
    if not place.strip():
        raise ValueError("is empty; name a file or a folder, or leave the key out")
    if "\0" in place:
        raise ValueError("holds a null character, which a file name cannot contain")
    encoded = place.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_PLACE_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        raise ValueError(
            f"is {len(encoded)} bytes long ({place[:40]!r}...); a name in a path may have {_MAX_NAME_BYTES}. Shorten it"
        )
    return place


def _search_folders(config_file: Path) -> tuple[Path, ...]:
    return config_file.parent, Path.cwd(), SHIPPED_FOLDER


def resolve_path(path: str, *, config_file: Path) -> str:
    """Return the absolute path: next to the config file, else in the working folder, else among agentrl's shipped files.

    A path that exists nowhere is returned as given: it may be the name of a model on a hub.
    """
    candidates = (folder / path for folder in _search_folders(config_file))
    return next((str(candidate.resolve()) for candidate in candidates if os.path.exists(candidate)), path)


def _input_path(path: str, info: ValidationInfo) -> str:
    return path if info.context is None else resolve_path(check_name(path), config_file=info.context.file)


def _input_files(names: list[str], info: ValidationInfo) -> list[str]:
    """Return absolute paths; a pattern (`*`, `?`, `[]`, `**`) gives all matching files, sorted."""
    if info.context is None:
        return names
    return [file for name in names for file in _matches(name, info.context.file)]


def _matches(name: str, config_file: Path) -> list[str]:
    path = resolve_path(check_name(name), config_file=config_file)
    if not glob.has_magic(name) or os.path.exists(path):
        return [path]
    for folder in _search_folders(config_file):
        matches = glob.glob(str(Path(glob.escape(str(folder))) / name), recursive=True)
        if files := sorted(str(Path(match).resolve()) for match in matches if Path(match).is_file()):
            return files
    raise ValueError(
        f"holds `{name}`, which matches no file, in {config_file.parent} or {Path.cwd()}. Generate the files first, or "
        "correct the pattern"
    )


def _output_folder(place: str, info: ValidationInfo) -> str:
    """Return an absolute folder; a store is refused, because `s3:bucket` would become a folder of that name."""
    if _BEGINS_AS_STORE.match(check_name(place)):
        raise ValueError(
            f"is {place!r}, a URL; it must be a folder of this machine. Only `checkpoint.dir` may be a store, such as "
            "`s3://bucket/runs/demo`"
        )
    return place if info.context is None else str(Path(place).resolve())


def _run_folder(place: str | None, info: ValidationInfo) -> str | None:
    if place is None and info.context is not None:
        place = info.context.default_dir
    return place if place is None else _output_folder(place, info)


def check_folder_or_url(place: str) -> None:
    """Check that a name that starts like a URL is a valid URL; `s3:/bucket` would become a folder `s3:`.

    Raises:
        ValueError: `place` is neither a URL nor clearly a folder; the message suggests a URL.
    """
    if is_url(check_name(place)):
        return
    if matched := _BEGINS_AS_URL.fullmatch(place):
        path = matched["rest"].lstrip("/")
        if matched["scheme"] in ("file", "local"):
            meant = f"Did you mean `{matched['rest']}`?"
        elif path[:1].isalnum():
            meant = f"Did you mean `{matched['scheme']}://{path}`?"
        else:
            meant = "A URL has `://` after its scheme."
        raise ValueError(
            f"is {place!r}, neither a folder nor a URL. {meant} (A folder of this machine with such a name begins with `./`.)"
        )


def _folder_or_store(place: str, info: ValidationInfo) -> str:
    check_folder_or_url(place)
    return place if info.context is None or is_url(place) else str(Path(place).resolve())


InputPath = Annotated[str, AfterValidator(_input_path)]
InputFiles = Annotated[list[str], AfterValidator(_input_files)]
RunFolder = Annotated[str | None, AfterValidator(_run_folder)]
OutputFolder = Annotated[str, AfterValidator(_output_folder)]
FolderOrStore = Annotated[str, AfterValidator(_folder_or_store)]
