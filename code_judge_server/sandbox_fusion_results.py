"""Verdicts in the words of SandboxFusion."""

import base64
from collections.abc import Mapping, Sequence

from code_judge_server.sandbox_fusion_schemas import CommandRunResult, CommandRunStatus, RunStatus, as_file_path
from code_judge_server.schemas import Verdict, VerdictStatus

_SIGKILL = 9


def run_status(verdict: Verdict) -> RunStatus:
    """Return what became of a request whose program got this verdict."""
    match verdict.status:
        case VerdictStatus.ACCEPTED:
            return RunStatus.SUCCESS
        case VerdictStatus.INTERNAL_ERROR | VerdictStatus.CANCELLED | VerdictStatus.QUEUE_TIMEOUT:
            return RunStatus.SANDBOX_ERROR
        case _:
            return RunStatus.FAILED


def run_result(verdict: Verdict) -> CommandRunResult:
    """Return how a program ended that ran."""
    in_time = verdict.status is not VerdictStatus.TIME_LIMIT_EXCEEDED
    return CommandRunResult(
        status=CommandRunStatus.FINISHED if in_time else CommandRunStatus.TIME_LIMIT_EXCEEDED,
        execution_time=verdict.wall_time_s,
        cpu_time=verdict.cpu_time_s,
        return_code=_return_code(verdict) if in_time else None,
        stdout=verdict.stdout,
        stderr=verdict.stderr,
    )


def compile_result(verdict: Verdict) -> CommandRunResult:
    """Return how the compiler ended that made a program."""
    return CommandRunResult(
        status=CommandRunStatus.FINISHED, execution_time=verdict.compile_time_s, return_code=0, stdout="", stderr=""
    )


def failed_compile_result(verdict: Verdict, *, time_limit_s: float) -> CommandRunResult:
    """Return how the compiler ended that made none."""
    # A verdict does not tell which limit a compiler passed; its wall clock is hardly ever less than its CPU time.
    too_late = verdict.signal == _SIGKILL and verdict.compile_time_s >= time_limit_s
    return CommandRunResult(
        status=CommandRunStatus.TIME_LIMIT_EXCEEDED if too_late else CommandRunStatus.FINISHED,
        execution_time=verdict.compile_time_s,
        return_code=None if too_late else _return_code(verdict) or 1,
        stdout=verdict.stdout,
        stderr=verdict.stderr,
    )


def encoded_files(names: Sequence[str], files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the files that are there, in base64, under the names by which they were asked for."""
    return {name: base64.b64encode(files[path]).decode() for name in names if (path := as_file_path(name)) in files}


def _return_code(verdict: Verdict) -> int:
    """Return the exit code or minus the signal; what was killed at a limit may have no signal of its own."""
    if verdict.exit_code is not None:
        return verdict.exit_code
    return -(verdict.signal or _SIGKILL)
