"""Verdicts in the format of SandboxFusion."""

import base64
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from code_judge_server.api.limits.json_bounds import has_more_than
from code_judge_server.compatible.sandbox_fusion_schemas import (
    CellRunResult,
    CommandRunResult,
    CommandRunStatus,
    RunStatus,
    as_file_path,
)
from code_judge_server.jail.python.notebook_display import MAX_PICTURE_CHARS
from code_judge_server.schemas import Verdict, VerdictStatus

_SIGKILL = 9
_TEXTS_OF_A_CELL = 6
_BYTES_OF_A_CHAR = 6
"""Most bytes of a character as JSON in UTF-8."""
_BYTES_BESIDES = 4096 + MAX_PICTURE_CHARS
_CONTAINERS_BESIDES = 2**12
_VALUES_BESIDES = 2**14
"""Most values that one cell may display, or lines in its traceback; plus 64 for each cell."""


def run_status(verdict: Verdict) -> RunStatus:
    """Return the status of a request whose program got this verdict."""
    match verdict.status:
        case VerdictStatus.ACCEPTED:
            return RunStatus.SUCCESS
        case VerdictStatus.INTERNAL_ERROR | VerdictStatus.CANCELLED | VerdictStatus.QUEUE_TIMEOUT:
            return RunStatus.SANDBOX_ERROR
        case _:
            return RunStatus.FAILED


def run_result(verdict: Verdict, *, too_late: bool = False) -> CommandRunResult:
    """Return the result of a program that ran; `too_late`: it ended itself at its time limit."""
    in_time = not too_late and verdict.status is not VerdictStatus.TIME_LIMIT_EXCEEDED
    return CommandRunResult(
        status=CommandRunStatus.FINISHED if in_time else CommandRunStatus.TIME_LIMIT_EXCEEDED,
        execution_time=verdict.wall_time_s,
        cpu_time=verdict.cpu_time_s,
        return_code=_return_code(verdict) if in_time else None,
        stdout=verdict.stdout,
        stderr=verdict.stderr,
    )


def compile_result(verdict: Verdict) -> CommandRunResult:
    """Return the result of a successful compiler."""
    return CommandRunResult(
        status=CommandRunStatus.FINISHED, execution_time=verdict.compile_time_s, return_code=0, stdout="", stderr=""
    )


def failed_compile_result(verdict: Verdict, *, time_limit_s: float) -> CommandRunResult:
    """Return the result of a failed compiler."""
    # A verdict does not name the compiler's exceeded limit; its wall clock is hardly ever less than its CPU time.
    too_late = verdict.signal == _SIGKILL and verdict.compile_time_s >= time_limit_s
    return CommandRunResult(
        status=CommandRunStatus.TIME_LIMIT_EXCEEDED if too_late else CommandRunStatus.FINISHED,
        execution_time=verdict.compile_time_s,
        return_code=None if too_late else _return_code(verdict) or 1,
        stdout=verdict.stdout,
        stderr=verdict.stderr,
    )


def encoded_files(names: Sequence[str], files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the existing files in base64, by their requested names."""
    return {name: base64.b64encode(files[path]).decode() for name in names if (path := as_file_path(name)) in files}


def read_cell_results(content: bytes, *, num_cells: int, max_chars: int) -> list[CellRunResult] | None:
    """Return the results in a notebook's file, one line per finished cell; None if they are not valid, as a cell can write
    anything there. Each of stdout and stderr has at most `max_chars`; display and error may take four times as much.
    """
    most = num_cells * (_TEXTS_OF_A_CELL * max_chars * _BYTES_OF_A_CHAR + _BYTES_BESIDES)
    if len(content) > most or has_more_than(
        content, containers=_CONTAINERS_BESIDES + 64 * num_cells, values=_VALUES_BESIDES + 64 * num_cells
    ):
        return None
    try:
        cells = [CellRunResult.model_validate_json(line) for line in content.split(b"\n")[:-1]]
    except ValidationError:
        return None
    return cells if len(cells) <= num_cells else None


def _return_code(verdict: Verdict) -> int:
    """Return the exit code or minus the signal; a program killed at a limit may have no signal."""
    if verdict.exit_code is not None:
        return verdict.exit_code
    return -(verdict.signal or _SIGKILL)
