"""From a submission to its verdict: run it, name how it ended, compare what it printed."""

import logging
from dataclasses import dataclass

from code_judge_server.ending import Ending
from code_judge_server.languages import as_program
from code_judge_server.sandbox import Executor, ExecutorError, Outcome, ProgramLimits
from code_judge_server.schemas import Limits, Submission, Verdict, VerdictStatus

logger = logging.getLogger(__name__)

_STATUS_OF_LIMIT = {
    Ending.CPU_TIME: VerdictStatus.TIME_LIMIT_EXCEEDED,
    Ending.WALL_TIME: VerdictStatus.TIME_LIMIT_EXCEEDED,
    Ending.MEMORY: VerdictStatus.MEMORY_LIMIT_EXCEEDED,
    Ending.OUTPUT: VerdictStatus.OUTPUT_LIMIT_EXCEEDED,
    Ending.TASKS: VerdictStatus.RUNTIME_ERROR,
    Ending.CANCELLED: VerdictStatus.CANCELLED,
}


class Judge:
    """Judges one submission at a time on an executor, and says in each verdict how far it was isolated.

    Args:
        executor: What runs the programs.
        max_limits: Limits of a submission that names none.
        max_reply_chars: Characters of stdout and of stderr in a verdict.
    """

    def __init__(self, executor: Executor, *, max_limits: Limits, max_reply_chars: int) -> None:
        self._executor = executor
        self._max_limits = max_limits
        self._max_reply_chars = max_reply_chars

    async def judge(self, submission: Submission, *, queue_time_s: float) -> Verdict:
        """Run a submission and return its verdict; cancelling the call kills the program."""
        program = as_program(submission.language, submission.code)
        try:
            outcome = await self._executor.execute(
                program, stdin=submission.stdin.encode(), limits=self._program_limits(submission.limits)
            )
        except ExecutorError as error:
            logger.warning("submission %s: %s", submission.id, error)
            return self.unjudged(
                submission, VerdictStatus.INTERNAL_ERROR, queue_time_s=queue_time_s, explanation=str(error)
            )
        stdout = _decode(outcome.stdout, self._max_reply_chars)
        stderr = _decode(outcome.stderr, self._max_reply_chars)
        return Verdict(
            id=submission.id,
            status=status_of(outcome, submission.expected_output),
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
            queue_time_s=queue_time_s,
            peak_memory_bytes=outcome.peak_memory_bytes,
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    def unjudged(
        self, submission: Submission, status: VerdictStatus, *, queue_time_s: float, explanation: str = ""
    ) -> Verdict:
        """Return the verdict on a submission that did not run to an outcome."""
        return Verdict(
            id=submission.id,
            status=status,
            stderr=explanation,
            queue_time_s=queue_time_s,
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    def _program_limits(self, limits: Limits) -> ProgramLimits:
        return ProgramLimits(**(self._max_limits.model_dump() | limits.model_dump(exclude_none=True)))


def status_of(outcome: Outcome, expected_output: str | None) -> VerdictStatus:
    """Name how a program ended; what it printed counts only where an output was expected."""
    if outcome.ending is not Ending.EXITED:
        return _STATUS_OF_LIMIT[outcome.ending]
    if outcome.compiling:
        return VerdictStatus.COMPILE_ERROR
    if outcome.exit_code != 0:
        return VerdictStatus.RUNTIME_ERROR
    if expected_output is not None and outcome.stdout.decode(errors="replace").strip() != expected_output.strip():
        return VerdictStatus.WRONG_ANSWER
    return VerdictStatus.ACCEPTED


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
