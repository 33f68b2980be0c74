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


_BEGINS_AS_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)
"""Begin of a URL; a scheme has at least two letters, so `C:/` is none."""


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


def _not_empty(place: str) -> str:
    if not place.strip():
        raise ValueError("is empty; name a file or a folder, or leave the key out")
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
    return path if info.context is None else resolve_path(_not_empty(path), config_file=info.context.file)


def _input_files(names: list[str], info: ValidationInfo) -> list[str]:
    """Return absolute paths; a pattern (`*`, `?`, `[]`, `**`) gives all matching files, sorted."""
    if info.context is None:
        return names
    return [file for name in names for file in _matches(name, info.context.file)]


def _matches(name: str, config_file: Path) -> list[str]:
    path = resolve_path(_not_empty(name), config_file=config_file)
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
    if is_url(_not_empty(place)):
        raise ValueError(
            f"is {place!r}, a URL; it must be a folder of this machine. Only `checkpoint.dir` may be a store"
        )
    return place if info.context is None else str(Path(place).resolve())


def _run_folder(place: str | None, info: ValidationInfo) -> str | None:
    if place is None and info.context is not None:
        place = info.context.default_dir
    return place if place is None else _output_folder(place, info)


def refuse_half_a_url(place: str) -> str:
    """Return a folder or URL; `s3:/bucket`, which would become a folder of this machine, and `memory://` raise ValueError."""
    if is_url(_not_empty(place)) and not place.startswith("memory:"):
        return place
    if _BEGINS_AS_URL.match(place):
        raise ValueError(
            f"is {place!r}, neither a folder nor the URL of a store, such as `s3://bucket/runs/demo`. A folder with such a "
            "name begins with `./`"
        )
    return place


def _folder_or_store(place: str, info: ValidationInfo) -> str:
    place = refuse_half_a_url(place)
    return place if is_url(_not_empty(place)) or info.context is None else str(Path(place).resolve())


InputPath = Annotated[str, AfterValidator(_input_path)]
InputFiles = Annotated[list[str], AfterValidator(_input_files)]
RunFolder = Annotated[str | None, AfterValidator(_run_folder)]
OutputFolder = Annotated[str, AfterValidator(_output_folder)]
FolderOrStore = Annotated[str, AfterValidator(_folder_or_store)]
