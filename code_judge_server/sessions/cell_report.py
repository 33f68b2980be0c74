"""What a session's own process says of a cell: read with bounds, for a cell can write anything there."""

import os

from pydantic import BaseModel, ConfigDict, ValidationError

from code_judge_server.api.json_bounds import has_more_than
from code_judge_server.jail.session_cell import MAX_SHOWN
from code_judge_server.sessions.schemas import CellError

_TEXTS = 4
"""Of which each is as long as a reply may have it: all that is displayed, and name, value and traceback of an error."""
_BYTES_OF_A_CHAR = 12
"""At most, as JSON in ASCII."""
_MAX_FORMS = 6
"""Of one value: plain text, and what `jail.session_cell` asks objects for."""
_BYTES_OF_A_VALUE = 256
"""Brackets, media types and commas."""


class CellReport(BaseModel):
    """What came of a cell, besides its output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    display: list[dict[str, str]] = []
    error: CellError | None = None


def read_report(file: int, *, max_chars: int) -> CellReport:
    """Return what is in a file, with no more than `max_chars` in all that is displayed; nothing, if that makes no sense."""
    most = _TEXTS * _BYTES_OF_A_CHAR * max_chars + _BYTES_OF_A_VALUE * (MAX_SHOWN + 1)
    content = os.pread(file, most + 1, 0)
    if len(content) > most or has_more_than(content, containers=MAX_SHOWN + 3, values=MAX_SHOWN * (_MAX_FORMS + 1)):
        return CellReport()
    try:
        report = CellReport.model_validate_json(content)
    except ValidationError:
        return CellReport()
    return CellReport(display=_first(report.display, max_chars), error=report.error and _cut(report.error, max_chars))


def _first(display: list[dict[str, str]], max_chars: int) -> list[dict[str, str]]:
    """Return the values that fit whole."""
    room = max_chars
    for index, forms in enumerate(display):
        room -= sum(map(len, forms.values()))
        if room < 0 or len(forms) > _MAX_FORMS or any(len(kind) > _BYTES_OF_A_VALUE for kind in forms):
            return display[:index]
    return display


def _cut(error: CellError, max_chars: int) -> CellError:
    return CellError(**{name: text[:max_chars] for name, text in error})
