"""The native format of the judge.

`POST /v1/submissions` takes a `SubmissionRequest` and gives a `Verdict`; `/v1/submissions/batch` takes a `SubmissionBatch`
and gives a `VerdictBatch` in the order of the submissions; `/v1/submissions/stream` takes the same and gives one `Verdict` per
line (NDJSON) in the order of completion. The status is 200 whatever the verdicts; the body of every refusal by an endpoint is
a `Rejection`: 400 wrong fields, 401 a missing token, 404 an unknown path or name, 408 a body that took too long to arrive,
413 a batch or body that is too large, 415 a body that is not JSON, 429 with `Retry-After` a full queue, 503 a server that is
stopping.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, FailFast, Field, model_validator

from code_judge_server.wire_fields import (
    Arguments,
    Collected,
    FileContent,
    GivenFiles,
    Identifier,
    LanguageName,
    SourceText,
    check_folders,
)


class IsolationTier(StrEnum):
    """Isolation of a program from the machine, strongest first."""

    A = "A"
    """Namespaces and cgroups."""
    B = "B"
    """User namespaces without a writable cgroup."""
    C = "C"
    """Landlock, seccomp and rlimits, no namespaces."""
    D = "D"
    """Limits of time, memory and output only: the program can read and write whatever the server can."""


class VerdictStatus(StrEnum):
    """Result of a submission, in the terms of programming contests."""

    ACCEPTED = "accepted"
    """Exit code 0 and the expected output, if one is given."""
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT_EXCEEDED = "time_limit_exceeded"
    MEMORY_LIMIT_EXCEEDED = "memory_limit_exceeded"
    OUTPUT_LIMIT_EXCEEDED = "output_limit_exceeded"
    """Limit of stdout, stderr or a file (SIGXFSZ). A full disk is an error that the program sees, and its own end decides."""
    RUNTIME_ERROR = "runtime_error"
    """Another exit code, a signal, or too many processes."""
    COMPILE_ERROR = "compile_error"
    """The compiler made no program, through the source's fault or at its limit of CPU time or memory."""
    INTERNAL_ERROR = "internal_error"
    """The judge failed; nothing is known about the program, and the submission may be sent again."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The program never ran; the submission may be sent again."""
    CANCELLED = "cancelled"
    """The request's `deadline_s` passed while the program ran."""


class _NativeModel(BaseModel):
    """Base of the native records: immutable, unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_NativeModel):
    """Limits of one program.

    An absent limit takes the server's default; a limit above the server's maximum is lowered to it.
    """

    cpu_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """CPU time of the program and everything it starts."""
    wall_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Wall clock, which catches programs that sleep."""
    memory_bytes: int | None = Field(default=None, ge=32 * 1024 * 1024)
    """Memory of the program and everything it starts."""
    output_bytes: int | None = Field(default=None, ge=1)
    """Bytes of stdout, and as many of stderr; a program that writes more ends with `output_limit_exceeded`."""
    max_tasks: int | None = Field(default=None, ge=1)
    """Processes and threads."""
    disk_bytes: int | None = Field(default=None, ge=4096)
    """Bytes of files that the program writes, without those it was given."""
    compile_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """CPU time of the compiler, if the language has one."""


class CheckerKind(StrEnum):
    """Comparison of an output with the expected one."""

    EXACT = "exact"
    """Compares byte for byte."""
    LINES = "lines"
    """Compares line by line, ignoring blanks at line ends (CR included) and white space at both ends of the text."""
    STRIPPED = "stripped"
    """Compares after `strip()` of both."""
    TOKENS = "tokens"
    """Compares the words between white space, in order."""
    FLOATS = "floats"
    """Compares words; two numbers need only be close."""
    PROGRAM = "program"
    """Lets a program of the user decide."""


class Checker(_NativeModel):
    """Comparison of an output with the expected one."""

    kind: CheckerKind = CheckerKind.LINES
    absolute_tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """Kind `floats`: numbers are close within this difference, or ..."""
    relative_tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """... within this share of the expected number."""
    language: LanguageName = "python"
    """Language of `code`, for kind `program`."""
    code: SourceText | None = None
    """Source for kind `program`, run in the jail as `checker input.txt output.txt expected.txt` (the last one is empty if no
    output is expected), within the server's default limits. Exit code 0 accepts, 1 is a wrong answer, and so are 2, 4 and 8 of
    a checker that is not in Python (testlib: presentation error, dirt, unexpected end of file). Any other end, and
    an exception that a Python checker does not catch, is an `internal_error` with the checker's stderr."""

    @model_validator(mode="after")
    def _check_program(self) -> "Checker":
        if (self.kind is CheckerKind.PROGRAM) != (self.code is not None):
            raise ValueError("`code` is for the kind `program`, which needs it")
        return self


class Interactor(_NativeModel):
    """A program of the user that talks to the judged program: each reads the output of the other."""

    language: LanguageName = "python"
    code: SourceText
    """Source of the interactor, run in a jail of its own as `interactor input.txt output.txt expected.txt`, like testlib's. The
    first file has the stdin of the test case, the last its expected output, the second is empty and for the interactor to
    write. It accepts, refuses and fails by the exit codes of a checker; a failure is no `internal_error` if the judged program
    had ended first. The interactor has the server's default limits, and a second more than the judged program."""


class TestCase(_NativeModel):
    """One input, and the expected output of the program."""

    __test__ = False  # its name looks like a test to pytest

    stdin: str = ""
    expected_output: str | None = None
    """Expected stdout, as in `Submission.expected_output`."""


class Submission(_NativeModel):
    """One program to run, once or for several test cases.

    Example: `{"id": "a", "language": "python", "code": "print(input())", "stdin": "5", "expected_output": "5"}`.
    """

    id: Identifier
    """Chosen by the client, unique in its batch; the verdict carries it. If the same client sends the same id with the same
    content again, the program is not run again: both requests get one verdict."""
    language: LanguageName = "python"
    code: SourceText
    compile_options: Arguments = []
    """More arguments for the compiler, such as `-std=c++20` or `-DN=5`; they come last, and win over its own."""
    arguments: Arguments = []
    """Arguments of the program (`sys.argv[1:]`)."""
    stdin: str = ""
    expected_output: str | None = None
    """Compared with stdout by `checker`. Absent: exit code 0 is enough, except for a checker of kind `program`."""
    tests: Annotated[list[TestCase], FailFast()] = Field(default=[], max_length=1024)
    """Test cases in place of `stdin` and `expected_output`; each is a run of its own, with the full limits."""
    stop_at_first_failure: bool = True
    """Skip the test cases after the first that fails."""
    checker: Checker = Checker()
    interactor: Interactor | None = None
    """Program that decides an interactive problem in place of the checker; it gets `stdin` and `expected_output`."""
    limits: Limits = Limits()
    files: GivenFiles = {}
    """Files that exist before the program starts, in base64, by relative path."""
    collect: Collected = []
    """Relative paths of files to bring back from the (last) run."""

    @model_validator(mode="after")
    def _check_tests(self) -> "Submission":
        if self.tests and (self.stdin or self.expected_output is not None):
            raise ValueError("`tests` stand in place of `stdin` and `expected_output`: give one or the other")
        return self

    @model_validator(mode="after")
    def _check_interactor(self) -> "Submission":
        if self.interactor is not None and "checker" in self.model_fields_set:
            raise ValueError("an `interactor` decides alone: leave out `checker`")
        return self

    @model_validator(mode="after")
    def _check_files(self) -> "Submission":
        check_folders(self.files)
        return self


class SubmissionRequest(Submission):
    """One submission, sent in a request of its own."""

    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds until the answer, as in `SubmissionBatch.deadline_s`."""


class SubmissionBatch(_NativeModel):
    """Programs to run, at most the server's `max_batch_items`."""

    submissions: list[Submission] = Field(min_length=1)
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds from the receipt of the request until it is answered: programs that have not started by then get `queue_timeout`,
    running ones are killed and get `cancelled`. Absent: no deadline."""


class RunResult(_NativeModel):
    """One run of the program: its end, its output, and the resources it used."""

    status: VerdictStatus
    exit_code: int | None = None
    """Exit code of the program (of the compiler, for `compile_error`); absent if it did not run or a signal ended it."""
    signal: int | None = None
    """Number of the signal that ended the program, whoever sent it."""
    stdout: str = ""
    """Output decoded as UTF-8, cut to the server's `max_reply_chars` (shared by all test cases of a submission); the folder of
    the program reads as `/sandbox`."""
    stderr: str = ""
    """Error output, as `stdout`; the compiler's messages for `compile_error`, the judge's for `internal_error`."""
    stdout_truncated: bool = False
    """The output was longer than the reply may hold."""
    stderr_truncated: bool = False
    stdout_invalid_utf8: bool = False
    """Bytes that are not UTF-8 were replaced by U+FFFD."""
    stderr_invalid_utf8: bool = False
    cpu_time_s: float = 0.0
    """User and system time of the program and everything it started, without compiling and checking."""
    wall_time_s: float = 0.0
    """Wall clock from the start of the program to its end, without compiling and checking."""
    peak_memory_bytes: int = 0
    """Peak memory of the program and everything it started. Tier A: the peak of its control group, files that it wrote
    included, less the slot's own memory. Elsewhere: the largest resident size of one process, or of all together where memory
    was sampled. The limit itself if the kernel killed the slot with the program.
    """


class Verdict(RunResult):
    """Result of one submission; with test cases, `status` and outputs are those of the first failed one, else of the last.

    Example: `{"id": "a", "status": "accepted", "exit_code": 0, "stdout": "5\\n", "isolation": "A", ...}`.
    """

    id: str
    queue_time_s: float = 0.0
    """Wait from the receipt of the request to the start, without time between test cases in which others had the slot."""
    compile_time_s: float = 0.0
    """Wall clock of the compiler, for this submission or for an earlier one with the same source."""
    tests: list[RunResult] = []
    """One entry per test case that ran, in order; the verdict has the sums of their times and the maximum of their memory."""
    files: dict[str, FileContent] = {}
    """The files of `collect` that were regular files, in base64."""
    files_truncated: bool = False
    """Files were left out because the server had no room for them (`max_collect_mb`, `reply_memory_mb`)."""
    limits: Limits | None = None
    """The limits applied, after the server's defaults and maxima; absent if neither the program nor a failing compiler ran."""
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    """`sampled`: memory is read every few hundredths of a second, so a program may exceed its limit for that long."""


class VerdictBatch(_NativeModel):
    """One verdict per submission, in the order of the submissions."""

    verdicts: list[Verdict]


class Canary(_NativeModel):
    """One check made at start, to find the isolation that this machine gives."""

    name: str
    """Name of the check, such as `user namespace`."""
    passed: bool
    detail: str = ""
    """Observation, or the reason of the failure."""


class Health(_NativeModel):
    """State of the server."""

    status: Literal["ok", "draining"] = "ok"
    version: str
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    canaries: list[Canary]
    """The checks that decided the tier."""
    preloads: list[str]
    """Module sets of the warm interpreters."""
    num_slots: int
    """Programs that compute at once; more run while some of them sleep."""
    num_running: int
    queue_length: int
    """Submissions that wait for a slot."""
    queue_capacity: int
    estimated_wait_s: float
    """Expected wait for a slot of a new submission by this client."""
    languages: list[str]
    max_batch_items: int
    default_limits: Limits
    """The limits of a submission that names none."""
    max_limits: Limits
    """Maxima to which larger limits are lowered."""


class FieldError(_NativeModel):
    """One wrong field, by its path, like `submissions.3.code`."""

    field: str
    message: str


class Rejection(_NativeModel):
    """Body of every refusal."""

    detail: str
    errors: list[FieldError] = []
