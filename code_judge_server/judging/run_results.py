"""The result of one run of a program: its status, and its output as text."""

import signal
from dataclasses import dataclass

from code_judge_server.sandbox.executor import Outcome
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import RunResult, VerdictStatus

_STATUS_OF_LIMIT = {
    Ending.CPU_TIME: VerdictStatus.TIME_LIMIT_EXCEEDED,
    Ending.WALL_TIME: VerdictStatus.TIME_LIMIT_EXCEEDED,
    Ending.MEMORY: VerdictStatus.MEMORY_LIMIT_EXCEEDED,
    Ending.OUTPUT: VerdictStatus.OUTPUT_LIMIT_EXCEEDED,
    Ending.TASKS: VerdictStatus.RUNTIME_ERROR,
    Ending.CANCELLED: VerdictStatus.CANCELLED,
}


def status_of(outcome: Outcome) -> VerdictStatus:
    """Return the status of a run, without regard to its output.

    A file that grew too large ends a program by SIGXFSZ, like a flood of output. A full disk is an error that the program
    itself sees and may survive, so only its exit code counts.
    """
    if outcome.ending is not Ending.EXITED:
        return _STATUS_OF_LIMIT[outcome.ending]
    if outcome.signal == signal.SIGXFSZ:
        return VerdictStatus.OUTPUT_LIMIT_EXCEEDED
    return VerdictStatus.ACCEPTED if outcome.exit_code == 0 else VerdictStatus.RUNTIME_ERROR


def end_of(outcome: Outcome) -> str:
    """Return the end of a run as a phrase, to follow the program's name in a sentence."""
    match outcome:
        case Outcome(ending=Ending.EXITED, signal=None):
            return f"ended with exit code {outcome.exit_code}"
        case Outcome(ending=Ending.EXITED):
            return f"was ended by signal {outcome.signal}"
        case _:
            return f"was killed at a limit, {outcome.ending}"


def run_result(outcome: Outcome, status: VerdictStatus, *, max_chars: int) -> RunResult:
    """Return the record of a run, with at most `max_chars` of stdout and as many of stderr."""
    stdout, stderr = _decode(outcome.stdout, max_chars), _decode(outcome.stderr, max_chars)
    return RunResult(
        status=status,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        stdout=stdout.text,
        stderr=stderr.text,
        stdout_truncated=stdout.cut or outcome.stdout_cut,
        stderr_truncated=stderr.cut or outcome.stderr_cut,
        stdout_invalid_utf8=stdout.invalid_utf8,
        stderr_invalid_utf8=stderr.invalid_utf8,
        cpu_time_s=outcome.cpu_time_s,
        wall_time_s=outcome.wall_time_s,
        peak_memory_bytes=outcome.peak_memory_bytes,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DecodedOutput:
    text: str
    cut: bool
    invalid_utf8: bool


def _decode(output: bytes, max_chars: int) -> _DecodedOutput:
    try:
        text, invalid_utf8 = output.decode(), False
    except UnicodeDecodeError:
        text, invalid_utf8 = output.decode(errors="replace"), True
    return _DecodedOutput(text=text[:max_chars], cut=len(text) > max_chars, invalid_utf8=invalid_utf8)
