"""A checker of the user: a program that reads input, output and expected output from files, and accepts or refuses."""

from code_judge_server.ending import Ending
from code_judge_server.judging.deciding_program import ACCEPTS, REFUSES, TESTLIB_REFUSES, DecidingProgram
from code_judge_server.sandbox import Executor


class ProgramChecker:
    """Runs a checker in the jail, afresh for each output."""

    def __init__(self, executor: Executor, checker: DecidingProgram) -> None:
        self._executor = executor
        self._checker = checker

    async def accepts(self, *, stdin: bytes, output: bytes, expected: bytes) -> bool:
        """Return whether the checker accepts the output of a program for `stdin`.

        Raises:
            CheckerFailedError: it ended with another exit code than 0 or 1, or with an uncaught exception.
            ExecutorError: as `Executor.execute`.
        """
        outcome = await self._executor.execute(self._checker.job(stdin=stdin, output=output, expected=expected))
        if not self._checker.has_raised(outcome) and outcome.ending is Ending.EXITED:
            if outcome.exit_code in (ACCEPTS, REFUSES):
                return outcome.exit_code == ACCEPTS
            if not self._checker.is_python and outcome.exit_code in TESTLIB_REFUSES:
                return False
        raise self._checker.failure(outcome)
