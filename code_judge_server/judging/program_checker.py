"""A checker of the user: a program that reads input, output and expected output from files, and accepts or refuses."""

from code_judge_server.judging.deciding_program import DecidingProgram, Decision
from code_judge_server.sandbox.executor import Executor


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
