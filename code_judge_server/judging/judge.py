"""The judging of one submission: compile it, run it on each test case, compare its output.

Expected outputs stay here: the judged program never has them, only a checker of the user.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from code_judge_server.judging.checkers import output_matches
from code_judge_server.judging.compile_cache import CompileCache
from code_judge_server.judging.compiling import CompileError, Compiler, CompilerStarvedError, Program
from code_judge_server.judging.deciding_program import CheckerFailedError, DecidingProgram, ProgramChecker
from code_judge_server.judging.interaction import InteractiveJudge
from code_judge_server.judging.run_results import run_result, status_of
from code_judge_server.languages import LanguageRules, command_for
from code_judge_server.limits import LimitPolicy, with_room_for
from code_judge_server.sandbox.executor import Executor, ExecutorError, Job, JobLimits, Outcome, OutputName, Spent
from code_judge_server.schemas import Checker, Limits, RunResult, Submission, TestCase, Verdict, VerdictStatus
from code_judge_server.settings import MIB, Settings

logger = logging.getLogger(__name__)

_COMPILE_PATIENCE = 4
"""Wall clock per CPU time of a compilation, so that a busy machine fails no honest source."""
_COMPILER_OUTPUT_BYTES = 1 * MIB
_COMPILER_DISK_BYTES = 256 * MIB
_MAX_ARTIFACT_BYTES = 64 * MIB


OnOutput = Callable[[int, OutputName, bytes], None]
"""Takes the index of a test case, the name of the stream, and a piece of the program's output."""


class Judge:
    """Judges one submission at a time on an executor; each verdict names the isolation.

    `max_reply_chars` holds for stdout and for stderr of a verdict, `max_collect_bytes` for all of its files together; a checker
    gets the default limits.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        languages: Mapping[str, LanguageRules],
        compiler: Compiler,
        limits: LimitPolicy,
        max_reply_chars: int,
        max_collect_bytes: int,
    ) -> None:
        self._executor = executor
        self._languages = languages
        self._compiler = compiler
        self._limits = limits
        self._max_reply_chars = max_reply_chars
        self._max_collect_bytes = max_collect_bytes

    async def judge(
        self,
        submission: Submission,
        *,
        queue_time_s: float,
        spent: Spent | None = None,
        between_tests: Callable[[], Awaitable[None]] | None = None,
        on_output: OnOutput | None = None,
    ) -> Verdict:
        """Run a submission in a supported language, and return its verdict; cancelling the call kills its programs.

        While programs run, their CPU time goes to `spent` and their output to `on_output`. `between_tests` is awaited after
        each test case but the last.
        """
        limits = self._limits.effective(submission.limits)
        try:
            program = await self._compiler.program(
                self._languages[submission.language],
                submission.code,
                submission.files,
                options=submission.compile_options,
                time_limit_s=submission.limits.compile_time_s,
            )
            decider = await self._decider(submission)
            runs = _Runs(spent=spent or Spent(), between_tests=between_tests, on_output=on_output)
            await self._run_tests(submission, program, limits, decider, runs)
        except CompileError as error:
            return self._compile_error(submission, error, queue_time_s=queue_time_s)
        except CheckerFailedError as error:
            logger.warning("submission %r: %s", submission.id, error)
            return self._checker_failure(submission, error, queue_time_s=queue_time_s)
        except (ExecutorError, CompilerStarvedError) as error:
            logger.warning("submission %r: %s", submission.id, error)
            return self.unjudged(
                submission, VerdictStatus.INTERNAL_ERROR, queue_time_s=queue_time_s, explanation=str(error)
            )
        return self._verdict(submission, program, runs, queue_time_s=queue_time_s)

    def unjudged(
        self,
        submission: Submission,
        status: VerdictStatus,
        *,
        queue_time_s: float,
        explanation: str = "",
        cpu_time_s: float = 0.0,
        wall_time_s: float = 0.0,
    ) -> Verdict:
        """Return the verdict on a submission without an outcome; a cancelled one did run, and used time."""
        return Verdict(
            id=submission.id,
            status=status,
            stderr=explanation,
            cpu_time_s=cpu_time_s,
            wall_time_s=wall_time_s,
            queue_time_s=queue_time_s,
            limits=self._limits.effective_limits(submission.limits) if status is VerdictStatus.CANCELLED else None,
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    def _checker_failure(self, submission: Submission, error: CheckerFailedError, *, queue_time_s: float) -> Verdict:
        result = run_result(error.outcome, VerdictStatus.INTERNAL_ERROR, max_chars=self._max_reply_chars)
        return Verdict(
            id=submission.id,
            status=VerdictStatus.INTERNAL_ERROR,
            stderr=f"{error}. It wrote: {result.stderr}",
            stderr_truncated=result.stderr_truncated,
            stderr_invalid_utf8=result.stderr_invalid_utf8,
            queue_time_s=queue_time_s,
            limits=self._limits.effective_limits(submission.limits) if error.program_ran else None,
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    async def _decider(self, submission: Submission) -> ProgramChecker | InteractiveJudge | None:
        if (checker := submission.checker).code is not None:
            program = await self._deciding_program("checker", checker.language, checker.code)
            return ProgramChecker(self._executor, program)
        if (interactor := submission.interactor) is not None:
            program = await self._deciding_program("interactor", interactor.language, interactor.code)
            return InteractiveJudge(self._executor, program)
        return None

    async def _deciding_program(self, kind: str, language: str, code: str) -> DecidingProgram:
        rules = self._languages[language]
        try:
            program = await self._compiler.program(rules, code, {})
        except CompileError as error:
            raise CheckerFailedError(f"{kind}: {error}", outcome=error.outcome, program_ran=False) from error
        limits = self._limits.effective(Limits())
        return DecidingProgram(kind=kind, program=program, limits=limits, is_python=rules.preload)

    async def _run_tests(
        self,
        submission: Submission,
        program: Program,
        limits: JobLimits,
        decider: ProgramChecker | InteractiveJudge | None,
        runs: "_Runs",
    ) -> None:
        tests = submission.tests or [TestCase(stdin=submission.stdin, expected_output=submission.expected_output)]
        job_limits = with_room_for(limits, program.files)
        argv = (*command_for(program.argv, memory_bytes=limits.memory_bytes), *submission.arguments)
        for number, test in enumerate(tests):
            if number > 0 and runs.between_tests is not None:
                await runs.between_tests()
            job = Job(
                argv=argv,
                limits=job_limits,
                files=program.files,
                stdin=test.stdin.encode(),
                preload=program.preload,
                collect=tuple(submission.collect),
                collect_bytes=self._max_collect_bytes if submission.collect else 0,
                on_output=None if runs.on_output is None else partial(runs.on_output, number),
                spent=runs.spent,
            )
            if isinstance(decider, InteractiveJudge):
                expected = (test.expected_output or "").encode()
                played = await decider.play(replace(job, stdin=b""), stdin=job.stdin, expected=expected)
                outcome, status = played.outcome, played.status
            else:
                outcome = await self._executor.execute(job)
                status = await _status(submission.checker, test, outcome, decider)
            runs.spent.by_ended_s += outcome.cpu_time_s
            if not runs.failed:
                runs.decisive = run_result(outcome, status, max_chars=self._max_reply_chars)
            if submission.tests:
                runs.of_tests.append(run_result(outcome, status, max_chars=self._max_reply_chars // len(tests)))
            runs.add(outcome)
            if runs.failed and submission.stop_at_first_failure:
                break

    def _verdict(self, submission: Submission, program: Program, runs: "_Runs", *, queue_time_s: float) -> Verdict:
        assert runs.decisive is not None  # there is at least one test case
        return Verdict(
            **vars(runs.decisive)
            | {
                "cpu_time_s": runs.cpu_time_s,
                "wall_time_s": runs.wall_time_s,
                "peak_memory_bytes": runs.peak_memory_bytes,
            },
            id=submission.id,
            queue_time_s=queue_time_s,
            compile_time_s=program.compile_time_s,
            tests=runs.of_tests,
            files=dict(runs.files),
            files_truncated=runs.files_cut,
            limits=self._limits.effective_limits(submission.limits),
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )

    def _compile_error(self, submission: Submission, error: CompileError, *, queue_time_s: float) -> Verdict:
        result = run_result(error.outcome, VerdictStatus.COMPILE_ERROR, max_chars=self._max_reply_chars)
        return Verdict(
            **vars(result) | {"cpu_time_s": 0.0, "wall_time_s": 0.0, "stderr": result.stderr or str(error)},
            id=submission.id,
            queue_time_s=queue_time_s,
            compile_time_s=error.outcome.wall_time_s,
            limits=self._limits.effective_limits(submission.limits),
            isolation=self._executor.tier,
            memory_enforcement=self._executor.memory_enforcement,
        )


async def _status(rules: Checker, test: TestCase, outcome: Outcome, checker: ProgramChecker | None) -> VerdictStatus:
    """Return the status of a run; its output only counts if it is compared."""
    status = status_of(outcome)
    if status is not VerdictStatus.ACCEPTED:
        return status
    if checker is not None:
        expected = (test.expected_output or "").encode()
        accepted = await checker.accepts(stdin=test.stdin.encode(), output=outcome.stdout, expected=expected)
    else:
        accepted = test.expected_output is None or await output_matches(rules, outcome.stdout, test.expected_output)
    return VerdictStatus.ACCEPTED if accepted else VerdictStatus.WRONG_ANSWER


@dataclass(slots=True, kw_only=True)
class _Runs:
    """The runs of a submission so far, without their whole outputs."""

    spent: Spent
    between_tests: Callable[[], Awaitable[None]] | None
    on_output: OnOutput | None
    decisive: RunResult | None = None
    """The first failed run, else the last."""
    of_tests: list[RunResult] = field(default_factory=list)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files of the last run."""
    files_cut: bool = False
    cpu_time_s: float = 0.0
    wall_time_s: float = 0.0
    peak_memory_bytes: int = 0

    @property
    def failed(self) -> bool:
        return self.decisive is not None and self.decisive.status is not VerdictStatus.ACCEPTED

    def add(self, outcome: Outcome) -> None:
        self.cpu_time_s += outcome.cpu_time_s
        self.wall_time_s += outcome.wall_time_s
        self.peak_memory_bytes = max(self.peak_memory_bytes, outcome.peak_memory_bytes)
        self.files, self.files_cut = outcome.files, outcome.files_cut


def create_judge(settings: Settings, executor: Executor, languages: Mapping[str, LanguageRules]) -> Judge:
    """Return a judge for these settings; it keeps compiled programs in memory."""
    limits = JobLimits(
        cpu_time_s=settings.compile_time_s,
        wall_time_s=_COMPILE_PATIENCE * settings.compile_time_s,
        memory_bytes=settings.compile_memory_mb * MIB,
        output_bytes=_COMPILER_OUTPUT_BYTES,
        max_tasks=settings.max_tasks,
        disk_bytes=_COMPILER_DISK_BYTES,
    )
    cache_bytes = settings.compile_cache_mb * MIB
    compiler = Compiler(
        executor,
        limits=limits,
        max_artifact_bytes=_MAX_ARTIFACT_BYTES,
        max_header_bytes=cache_bytes // 2,
        cache=CompileCache(cache_bytes),
    )
    return Judge(
        executor,
        languages=languages,
        compiler=compiler,
        limits=settings.limit_policy,
        max_reply_chars=settings.max_reply_chars,
        max_collect_bytes=settings.max_collect_mb * MIB,
    )
