"""A checker of the user's: a program that reads input, output and expected output from files, and accepts or not."""

import re

from code_judge_server.ending import Ending
from code_judge_server.judging.compiling import Program
from code_judge_server.judging.run_results import end_of
from code_judge_server.languages import command_for
from code_judge_server.limits import with_room_for
from code_judge_server.sandbox import Executor, Job, JobLimits, Outcome

FILE_NAMES = ("input.txt", "output.txt", "expected.txt")
_ACCEPTS, _REFUSES = 0, 1
TESTLIB_REFUSES = (_REFUSES, 2, 4, 8)
"""Wrong answer, presentation error, dirt after the answer, unexpected end of file."""
UNCAUGHT = re.compile(
    rb"^(?:Traceback \(most recent call last\):\n  File \"|"
    rb"  \+ Exception Group Traceback \(most recent call last\):\n|"
    rb"  File \".*\", line \d+\n(?: .*\n){0,3}(?:SyntaxError|IndentationError|TabError): )",
    re.MULTILINE,
)
"""What Python writes to stderr before it ends with exit code 1: that of a refusal. The search takes time in proportion to the
text, which a judged program may have had its checker repeat.
"""


class CheckerFailedError(Exception):
    """The checker neither accepted nor refused; `outcome` has what it wrote, which may tell what was expected."""

    def __init__(self, message: str, *, outcome: Outcome, program_ran: bool) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.program_ran = program_ran


class ProgramChecker:
    """Runs a checker in the jail, each time afresh.

    Args:
        executor: Where it runs.
        program: The checker.
        limits: What one run of it may use.
        is_python: What it raises and does not catch is no refusal.
    """

    def __init__(self, executor: Executor, program: Program, *, limits: JobLimits, is_python: bool) -> None:
        self._executor = executor
        self._program = program
        self._limits = limits
        self._is_python = is_python

    async def accepts(self, *, stdin: bytes, output: bytes, expected: bytes) -> bool:
        """Return whether the checker accepts what a program printed for `stdin`.

        Raises:
            CheckerFailedError: it ended otherwise than with exit code 0 or 1, or raised what nobody caught.
            ExecutorError: as `Executor.execute`.
        """
        texts = dict(zip(FILE_NAMES, (stdin, output, expected), strict=True))
        files = {**self._program.files, **texts}
        outcome = await self._executor.execute(
            Job(
                argv=(*command_for(self._program.argv, memory_bytes=self._limits.memory_bytes), *FILE_NAMES),
                limits=with_room_for(self._limits, files),
                files=files,
                preload=self._program.preload,
            )
        )
        if self._is_python and outcome.exit_code == _REFUSES and UNCAUGHT.search(outcome.stderr):
            told = "checker: it ended with an exception"
        elif outcome.ending is Ending.EXITED and outcome.exit_code in (_ACCEPTS, _REFUSES):
            return outcome.exit_code == _ACCEPTS
        elif not self._is_python and outcome.ending is Ending.EXITED and outcome.exit_code in TESTLIB_REFUSES:
            return False
        else:
            told = f"checker: it {end_of(outcome)}; exit code 0 accepts and 1 refuses"
        raise CheckerFailedError(told, outcome=outcome, program_ran=True)
