"""Interactive problems: the judged program and an interactor of the user's, each in a jail, joined by two pipes."""

import re
import signal
from dataclasses import dataclass, replace

from code_judge_server.ending import Ending
from code_judge_server.judging.compiling import Program
from code_judge_server.judging.program_checker import (
    FILE_NAMES,
    TESTLIB_REFUSES,
    UNCAUGHT,
    CheckerFailedError,
)
from code_judge_server.judging.run_results import end_of, status_of
from code_judge_server.languages import command_for
from code_judge_server.limits import with_room_for
from code_judge_server.sandbox import Executor, Job, JobLimits, Outcome
from code_judge_server.schemas import VerdictStatus

_LEFT_ALONE = re.compile(rb"^(?:EOFError|BrokenPipeError|ConnectionResetError)\b", re.MULTILINE)
"""Last line of the traceback of a program in Python whose partner has gone; of others only the order of the ends tells."""
_PYTHON_COULD_NOT_FLUSH = 120
_PATIENCE_S = 1.0
"""By which an interactor may outlast the program: it still has to say what it thinks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interaction:
    """How one conversation ended."""

    outcome: Outcome
    """Of the judged program; its stderr is followed by what the interactor wrote there, unless that accepts."""
    status: VerdictStatus


class InteractiveJudge:
    """Has programs talk to an interactor, which is run afresh each time.

    Args:
        executor: Where both run.
        program: The interactor.
        limits: What one run of it may use.
        is_python: What it raises and does not catch is no refusal.
    """

    def __init__(self, executor: Executor, program: Program, *, limits: JobLimits, is_python: bool) -> None:
        self._executor = executor
        self._program = program
        self._limits = limits
        self._is_python = is_python

    async def play(self, job: Job, *, stdin: bytes, expected: bytes) -> Interaction:
        """Run a program against the interactor.

        Args:
            job: The program.
            stdin: What the interactor finds in its first file.
            expected: What it finds in its last.

        Raises:
            CheckerFailedError: the interactor neither accepted nor refused, and not for want of a partner.
            ExecutorError: as `Executor.execute_pair`.
        """
        files = {**self._program.files, **dict(zip(FILE_NAMES, (stdin, b"", expected), strict=True))}
        limits = replace(self._limits, wall_time_s=job.limits.wall_time_s + _PATIENCE_S)
        interactor = Job(
            argv=(*command_for(self._program.argv, memory_bytes=limits.memory_bytes), *FILE_NAMES),
            limits=with_room_for(limits, files),
            files=files,
        )
        # Not by warm interpreters, whose stdin is a file and no pipe.
        program, other = await self._executor.execute_pair((replace(job, preload=None), interactor))
        status = self._decide(program, other)
        if status is VerdictStatus.ACCEPTED:
            return Interaction(outcome=program, status=status)
        labelled = other.stderr and b"interactor: " + other.stderr
        stderr = b"\n".join(filter(None, (program.stderr, labelled)))
        return Interaction(outcome=replace(program, stderr=stderr), status=status)

    def _decide(self, program: Outcome, other: Outcome) -> VerdictStatus:
        status = status_of(program)
        if program.ending is not Ending.EXITED or program.signal not in (None, signal.SIGPIPE):
            return status
        raised = self._is_python and other.exit_code == 1 and UNCAUGHT.search(other.stderr) is not None
        exited = other.ending is Ending.EXITED and other.signal is None
        if exited and not raised and other.exit_code == 0:
            return status
        if exited and not raised and other.exit_code in TESTLIB_REFUSES:
            saw_it_gone = program.signal == signal.SIGPIPE or _LEFT_ALONE.search(program.stderr) is not None
            was_left = saw_it_gone or other.ended_at <= program.ended_at
            return VerdictStatus.WRONG_ANSWER if status is VerdictStatus.ACCEPTED or was_left else status
        could_not_flush = self._is_python and other.exit_code == _PYTHON_COULD_NOT_FLUSH
        left_alone = other.signal == signal.SIGPIPE or (
            (raised or could_not_flush) and _LEFT_ALONE.search(other.stderr) is not None
        )
        if left_alone and other.ending is Ending.EXITED:
            return VerdictStatus.WRONG_ANSWER if status is VerdictStatus.ACCEPTED else status
        told = "it ended with an exception" if raised else f"it {end_of(other)}; exit code 0 accepts and 1 refuses"
        raise CheckerFailedError(f"interactor: {told}", outcome=other, program_ran=True)
