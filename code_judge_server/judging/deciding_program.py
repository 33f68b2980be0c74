"""A checker or an interactor of the user: a program that reads three files and accepts by its exit code."""

import re
from dataclasses import dataclass, replace
from enum import StrEnum

from code_judge_server.judging.compiling import Program
from code_judge_server.judging.run_results import end_of
from code_judge_server.languages import command_for
from code_judge_server.limits import with_room_for
from code_judge_server.sandbox.executor import Executor, Job, JobLimits, Outcome
from code_judge_server.sandbox.outcome import Ending

FILE_NAMES = ("input.txt", "output.txt", "expected.txt")
_ACCEPTS, _REFUSES = 0, 1
_TESTLIB_REFUSES = (2, 4, 8)
"""Presentation error, dirt after the answer, unexpected end of file. Python itself exits with 2 if it cannot open a file, so in
Python they are failures."""
UNCAUGHT = re.compile(
    rb"^(?:Traceback \(most recent call last\):\n  File \"|"
    rb"  \+ Exception Group Traceback \(most recent call last\):\n|"
    rb"  File \".*\", line \d+\n(?: .*\n){0,3}(?:SyntaxError|IndentationError|TabError): )",
    re.MULTILINE,
)
"""Python's stderr before it exits with 1 for an exception, which is also the exit code of a refusal. The search is linear in
the text, which a judged program may have caused its checker to print.
"""


class CheckerFailedError(Exception):
    """A checker or interactor neither accepted nor refused; `outcome` has its output, which may contain the expected output."""

    def __init__(self, message: str, *, outcome: Outcome, program_ran: bool) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.program_ran = program_ran


class Decision(StrEnum):
    """Decision of a checker or interactor about a program."""

    ACCEPTED = "accepted"
    REFUSED = "refused"
    FAILED = "failed"
    """Neither: another exit code, a signal, a limit, or an uncaught Python exception."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidingProgram:
    """The compiled program of a checker or interactor."""

    kind: str
    """Name in messages: `checker` or `interactor`."""
    program: Program
    limits: JobLimits
    is_python: bool
    """Treat an uncaught exception as a failure, not as a refusal."""

    def job(self, *, stdin: bytes, output: bytes, expected: bytes, wall_time_s: float | None = None) -> Job:
        """Return the job of one run on these contents of `FILE_NAMES`, with another wall-clock limit if one is given."""
        files = {**self.program.files, **dict(zip(FILE_NAMES, (stdin, output, expected), strict=True))}
        limits = self.limits if wall_time_s is None else replace(self.limits, wall_time_s=wall_time_s)
        return Job(
            argv=(*command_for(self.program.argv, memory_bytes=limits.memory_bytes), *FILE_NAMES),
            limits=with_room_for(limits, files),
            files=files,
            preload=self.program.preload,
        )

    def decision(self, outcome: Outcome) -> Decision:
        """Return the decision of a run."""
        if outcome.ending is not Ending.EXITED or self.has_raised(outcome):
            return Decision.FAILED
        if outcome.exit_code == _ACCEPTS:
            return Decision.ACCEPTED
        refusals = (_REFUSES,) if self.is_python else (_REFUSES, *_TESTLIB_REFUSES)
        return Decision.REFUSED if outcome.exit_code in refusals else Decision.FAILED

    def has_raised(self, outcome: Outcome) -> bool:
        """Return whether a run ended with an uncaught exception."""
        return self.is_python and outcome.exit_code == _REFUSES and UNCAUGHT.search(outcome.stderr) is not None

    def failure(self, outcome: Outcome) -> CheckerFailedError:
        """Return the error for a run that neither accepted nor refused."""
        end = (
            "ended with an exception"
            if self.has_raised(outcome)
            else f"{end_of(outcome)}; exit code 0 accepts and 1 refuses"
        )
        return CheckerFailedError(f"{self.kind}: it {end}", outcome=outcome, program_ran=True)


class ProgramChecker:
    """Runs a checker in the jail, afresh for each output."""

    def __init__(self, executor: Executor, checker: DecidingProgram) -> None:
        self._executor = executor
        self._checker = checker

    async def accepts(self, *, stdin: bytes, output: bytes, expected: bytes) -> bool:
        """Return whether the checker accepts the output of a program for `stdin`.

        Raises:
            CheckerFailedError: it neither accepted nor refused.
            ExecutorError: as `Executor.execute`.
        """
        outcome = await self._executor.execute(self._checker.job(stdin=stdin, output=output, expected=expected))
        decision = self._checker.decision(outcome)
        if decision is Decision.FAILED:
            raise self._checker.failure(outcome)
        return decision is Decision.ACCEPTED
