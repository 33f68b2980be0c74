"""Results of a cell as reported by its session's own process: read with bounds, as a cell can write anything there."""

import os
from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from code_judge_server.api.limits.json_bounds import has_more_than
from code_judge_server.jail.python.notebook import MAX_SHOWN
from code_judge_server.jail.python.notebook_display import MAX_FORMS, MAX_PICTURE_CHARS
from code_judge_server.sessions.schemas import CellError

_TEXTS = 4
"""Texts that may each be as long as a reply allows: everything displayed, and name, value and traceback of an error."""
_BYTES_OF_A_CHAR = 12
"""Most bytes of a character as JSON in ASCII."""
_MAX_FILES = 64
"""Most files of one report, each with a number and a size."""
_PICTURES = "image/"
_TEXT_PICTURE = "image/svg+xml"
_BYTES_OF_A_VALUE = 256
"""Bytes of brackets, media types and commas per value."""


class CellReport(BaseModel):
    """Results of a cell, besides its output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    display: list[dict[str, str]] = []
    error: CellError | None = None
    files: list[tuple[int, int | None]] = Field(default=[], max_length=_MAX_FILES)
    """Index and size of the collected files, in the order of their contents; no size if there was no room."""


def read_report(file: int, *, max_chars: int) -> CellReport:
    """Return the report in a file, with at most `max_chars` of displayed text; an empty one if the file is not valid."""
    parts = MAX_SHOWN + _MAX_FILES + 1
    most = _TEXTS * _BYTES_OF_A_CHAR * max_chars + _BYTES_OF_A_VALUE * parts + MAX_PICTURE_CHARS
    content = os.pread(file, most + 1, 0)
    values = MAX_SHOWN * (MAX_FORMS + 1) + 2 * _MAX_FILES
    if len(content) > most or has_more_than(content, containers=parts + 3, values=values):
        return CellReport()
    try:
        report = CellReport.model_validate_json(content)
    except ValidationError:
        return CellReport()
    error = report.error and _cut(report.error, max_chars)
    return CellReport(display=_first(report.display, max_chars), error=error, files=report.files)


def read_files(file: int, report: CellReport, paths: Sequence[str], *, max_bytes: int) -> tuple[dict[str, bytes], bool]:
    """Return the contents of the files that a cell reports in `file`, and whether one was left out for lack of room."""
    contents: dict[str, bytes] = {}
    offset = 0
    for index, size in report.files:
        if size is None:
            continue
        if not 0 <= index < len(paths) or not 0 <= size <= max_bytes - offset:
            break  # an honest session does not report this
        contents[paths[index]] = os.pread(file, size, offset)
        offset += size
    return contents, any(size is None for _, size in report.files)


def _first(display: list[dict[str, str]], max_chars: int) -> list[dict[str, str]]:
    """Return the first values that fit as a whole."""
    room, picture_room = max_chars, MAX_PICTURE_CHARS
    for index, forms in enumerate(display):
        pictures = sum(len(form) for kind, form in forms.items() if _is_picture(kind))
        room -= sum(map(len, forms.values())) - pictures
        picture_room -= pictures
        if (
            min(room, picture_room) < 0
            or len(forms) > MAX_FORMS
            or any(len(kind) > _BYTES_OF_A_VALUE for kind in forms)
        ):
            return display[:index]
    return display


def _is_picture(kind: str) -> bool:
    return kind.startswith(_PICTURES) and kind != _TEXT_PICTURE


def _cut(error: CellError, max_chars: int) -> CellError:
    return CellError(**{name: text[:max_chars] for name, text in error})
