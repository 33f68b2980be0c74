"""Interactive problems: the judged program and an interactor of the user, each in a jail, joined by two pipes."""

import re
import signal
from dataclasses import dataclass, replace

from code_judge_server.judging.deciding_program import DecidingProgram, Decision
from code_judge_server.judging.run_results import end_of, status_of
from code_judge_server.sandbox.executor import Executor, Job, Outcome
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.schemas import VerdictStatus

_LEFT_ALONE = re.compile(rb"^(?:EOFError|BrokenPipeError|ConnectionResetError)\b", re.MULTILINE)
"""Last line of a Python traceback when the partner has ended; for other languages only the order of the ends shows this."""
_PYTHON_COULD_NOT_FLUSH = 120
_FLOOD_BYTES = 60 * 1024
"""Unread bytes of an interactor killed at a limit: with more, the pipe (64 KiB) was full and the program was flooding it."""
_PATIENCE_S = 1.0
"""Time by which an interactor may outlast the program, to decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """End of one conversation."""

    outcome: Outcome
    """Outcome of the judged program; its stderr is followed by that of the interactor, unless that accepts."""
    status: VerdictStatus


class InteractiveJudge:
    """Runs programs against an interactor, which starts afresh each time."""

    def __init__(self, executor: Executor, interactor: DecidingProgram) -> None:
        self._executor = executor
        self._interactor = interactor

    async def play(self, job: Job, *, stdin: bytes, expected: bytes) -> Interaction:
        """Run a program against the interactor, whose first file has `stdin`, and the last `expected`.

        Raises:
            CheckerFailedError: the interactor neither accepted nor refused, and not because its partner ended.
            ExecutorError: as `Executor.execute_pair`.
        """
        wall_time_s = job.limits.wall_time_s + _PATIENCE_S
        interactor = self._interactor.job(stdin=stdin, output=b"", expected=expected, wall_time_s=wall_time_s)
        # Not by warm interpreters, whose stdin must be a file.
        jobs = replace(job, preload=None), replace(interactor, preload=None)
        program, other = await self._executor.execute_pair(jobs)
        status = self._decide(program, other)
        if status is VerdictStatus.ACCEPTED:
            return Interaction(outcome=program, status=status)
        message = other.stderr or (b"" if other.ending is Ending.EXITED else f"it {end_of(other)}".encode())
        labelled = message and b"interactor: " + message
        stderr = b"\n".join(filter(None, (program.stderr, labelled)))
        return Interaction(outcome=replace(program, stderr=stderr), status=status)

    def _decide(self, program: Outcome, other: Outcome) -> VerdictStatus:
        status = status_of(program)
        if program.ending is not Ending.EXITED or program.signal not in (None, signal.SIGPIPE):
            return status
        if other.ending in (Ending.MEMORY, Ending.CPU_TIME) and other.stdin_left_bytes >= _FLOOD_BYTES:
            return VerdictStatus.OUTPUT_LIMIT_EXCEEDED
        decision = self._interactor.decision(other)
        if decision is Decision.ACCEPTED:
            return status
        if decision is Decision.REFUSED:
            sees_partner_gone = program.signal == signal.SIGPIPE or _LEFT_ALONE.search(program.stderr) is not None
            was_left = sees_partner_gone or other.ended_at <= program.ended_at
            return VerdictStatus.WRONG_ANSWER if status is VerdictStatus.ACCEPTED or was_left else status
        could_not_flush = self._interactor.is_python and other.exit_code == _PYTHON_COULD_NOT_FLUSH
        left_alone = other.signal == signal.SIGPIPE or (
            (self._interactor.has_raised(other) or could_not_flush) and _LEFT_ALONE.search(other.stderr) is not None
        )
        if left_alone and other.ending is Ending.EXITED:
            return VerdictStatus.WRONG_ANSWER if status is VerdictStatus.ACCEPTED else status
        raise self._interactor.failure(other)
