"""The native format of the judge.

`POST /v1/submissions` takes a `SubmissionRequest` and gives a `Verdict`; `/v1/submissions/batch` takes a `SubmissionBatch`
and gives a `VerdictBatch` in the order of the submissions; `/v1/submissions/stream` takes the same and gives one `Verdict` a
line (NDJSON) in the order of completion. 200 whatever the verdicts; every refusal by an endpoint is a
`Rejection`: 400 names the wrong fields, 401 a missing token, 404 what is not there, 408 a body that took too long to arrive,
413 a batch or body that is too large, 415 what is no JSON, 429 with `Retry-After` a full queue, 503 a server that is
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
    """How far a program is kept from the machine, strongest first."""

    A = "A"
    """Namespaces and cgroups."""
    B = "B"
    """User namespaces without a writable cgroup."""
    C = "C"
    """Landlock, seccomp and rlimits, no namespaces."""
    D = "D"
    """Limits of time, memory and output only: the program can read and write whatever the server can."""


class VerdictStatus(StrEnum):
    """How a submission ended, in the words of programming contests."""

    ACCEPTED = "accepted"
    """Exit code 0 and, where an output was expected, that output."""
    WRONG_ANSWER = "wrong_answer"
    TIME_LIMIT_EXCEEDED = "time_limit_exceeded"
    MEMORY_LIMIT_EXCEEDED = "memory_limit_exceeded"
    OUTPUT_LIMIT_EXCEEDED = "output_limit_exceeded"
    """Of stdout or stderr, or of a file (SIGXFSZ). A full disk is an error that the program sees: its own end counts."""
    RUNTIME_ERROR = "runtime_error"
    """Another exit code, a signal, or too many processes."""
    COMPILE_ERROR = "compile_error"
    """The compiler made no program, for the source's fault or at its limit of CPU time or memory."""
    INTERNAL_ERROR = "internal_error"
    """The judge failed; nothing is known about the program, and it may be sent again."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The program never ran; it may be sent again."""
    CANCELLED = "cancelled"
    """The request's `deadline_s` passed while the program ran."""


class _NativeModel(BaseModel):
    """Base of the native records: immutable, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_NativeModel):
    """What one program may use.

    An absent limit is the server's default; a larger one than the server's maximum is lowered to it.
    """

    cpu_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """CPU time of the program and everything it starts."""
    wall_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Wall clock, which catches programs that sleep."""
    memory_bytes: int | None = Field(default=None, ge=32 * 1024 * 1024)
    """Memory of the program and everything it starts."""
    output_bytes: int | None = Field(default=None, ge=1)
    """Bytes of stdout, and as many of stderr; one more ends the program with `output_limit_exceeded`."""
    max_tasks: int | None = Field(default=None, ge=1)
    """Processes and threads."""
    disk_bytes: int | None = Field(default=None, ge=4096)
    """Files that the program writes, beside those that were given to it."""
    compile_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """CPU time of the compiler, if the language has one."""


class CheckerKind(StrEnum):
    """How an output is compared with the expected one."""

    EXACT = "exact"
    """Byte for byte."""
    LINES = "lines"
    """Line by line, without blanks at the ends of lines (a CR is one) and white space at both ends of the whole."""
    STRIPPED = "stripped"
    """After `strip()` of both."""
    TOKENS = "tokens"
    """The words between white space, one after the other."""
    FLOATS = "floats"
    """As tokens, but two that are numbers need only be close."""
    PROGRAM = "program"
    """A program of the user's decides."""


class Checker(_NativeModel):
    """How an output is compared with the expected one."""

    kind: CheckerKind = CheckerKind.LINES
    absolute_tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """For `floats`: close is within this, or ..."""
    relative_tolerance: float = Field(default=1e-6, ge=0, allow_inf_nan=False)
    """... within this share of the expected number."""
    language: LanguageName = "python"
    """For `program`."""
    code: SourceText | None = None
    """For `program`: run in the jail as `checker input.txt output.txt expected.txt` (the last one empty where no output is
    expected), within the server's default limits. Exit code 0 accepts, 1 is a wrong answer, and so are 2, 4 and 8 of a checker
    that is not in Python (testlib: presentation error, dirt, unexpected end of file); any other end, and an exception that a
    Python checker does not catch, is an `internal_error` with what it printed to stderr."""

    @model_validator(mode="after")
    def _check_program(self) -> "Checker":
        if (self.kind is CheckerKind.PROGRAM) != (self.code is not None):
            raise ValueError("`code` is for the kind `program`, which needs it")
        return self


class Interactor(_NativeModel):
    """A program of the user's that talks to the judged one: each reads what the other prints."""

    language: LanguageName = "python"
    code: SourceText
    """Run in a jail of its own as `interactor input.txt output.txt expected.txt`, as those of testlib: the first has the stdin
    of the test case, the last its expected output, the second is empty and its own. Exit code 0 accepts, 1, 2, 4 and 8 do not;
    any other end is an `internal_error`, unless the judged program has left it. It has the server's default limits, and a
    second more than the judged program."""


class TestCase(_NativeModel):
    """One input, and what the program must print for it."""

    __test__ = False  # its name looks like a test to pytest

    stdin: str = ""
    expected_output: str | None = None
    """As `Submission.expected_output`."""


class Submission(_NativeModel):
    """One program to run, once or on several test cases.

    Example: `{"id": "a", "language": "python", "code": "print(input())", "stdin": "5", "expected_output": "5"}`.
    """

    id: Identifier
    """Chosen by the client, unique in its batch; the verdict carries it back. The same id with the same content, sent again
    by the same client, is not run again: both get the one verdict."""
    language: LanguageName = "python"
    code: SourceText
    compile_options: Arguments = []
    """More words for the compiler, such as `-std=c++20` or `-DN=5`; where they contradict its own, they come last and win."""
    arguments: Arguments = []
    """Words that the program finds behind its name (`sys.argv[1:]`)."""
    stdin: str = ""
    expected_output: str | None = None
    """Compared with stdout as `checker` says; absent: exit code 0 is all that is asked, but by a checker of kind `program`."""
    tests: Annotated[list[TestCase], FailFast()] = Field(default=[], max_length=1024)
    """Instead of `stdin` and `expected_output`: each is a run of its own, with the limits for itself."""
    stop_at_first_failure: bool = True
    """Leave out the test cases after the first that fails."""
    checker: Checker = Checker()
    interactor: Interactor | None = None
    """Program that decides an interactive problem in place of the checker; `stdin` and `expected_output` go to it."""
    limits: Limits = Limits()
    files: GivenFiles = {}
    """Files that are there before the program starts, by relative path, in base64."""
    collect: Collected = []
    """Files to bring back from the (last) run, by relative path."""

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
    """One submission in a request of its own."""

    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """As `SubmissionBatch.deadline_s`."""


class SubmissionBatch(_NativeModel):
    """Programs to run, in any number that the server's `max_batch_items` allows."""

    submissions: list[Submission] = Field(min_length=1)
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds from the receipt of the request by which it is answered: what has not started by then is `queue_timeout`,
    what still runs is killed and `cancelled`. Absent: as long as it takes."""


class RunResult(_NativeModel):
    """How one run of the program ended, and what it used."""

    status: VerdictStatus
    exit_code: int | None = None
    """Exit code of the program (of the compiler, for `compile_error`); absent if it did not run or a signal ended it."""
    signal: int | None = None
    """Number of the signal that ended the program, whoever sent it."""
    stdout: str = ""
    """Decoded as UTF-8, cut to the server's `max_reply_chars` (of which each of many test cases has its share); the folder that
    the program ran in is `/sandbox`."""
    stderr: str = ""
    """As `stdout`; for `compile_error` what the compiler said, for `internal_error` what went wrong."""
    stdout_truncated: bool = False
    """There was more than the reply holds."""
    stderr_truncated: bool = False
    stdout_invalid_utf8: bool = False
    """Bytes that are not UTF-8 were replaced by U+FFFD."""
    stderr_invalid_utf8: bool = False
    cpu_time_s: float = 0.0
    """User and system time of the program and everything it started, without compiling and checking."""
    wall_time_s: float = 0.0
    """From the start of the program to its end, without compiling and checking."""
    peak_memory_bytes: int = 0
    """Of the program and everything it started. Tier A: the most that its control group held at once, files that it wrote
    included, less what the slot held before. Elsewhere: the largest resident size of one process, or of all together where they
    were sampled. The limit itself where the kernel killed the slot with the program.
    """


class Verdict(RunResult):
    """What became of one submission; with test cases, `status` and outputs are those of the first that failed, or of the last.

    Example: `{"id": "a", "status": "accepted", "exit_code": 0, "stdout": "5\\n", "isolation": "A", ...}`.
    """

    id: str
    queue_time_s: float = 0.0
    """From the receipt of the request to the start; without the time between test cases in which others had the slot."""
    compile_time_s: float = 0.0
    """Wall clock of the compiler, whether it ran for this submission or for an earlier one of the same source."""
    tests: list[RunResult] = []
    """One per test case that ran, in their order; times of the verdict are their sums, its memory their maximum."""
    files: dict[str, FileContent] = {}
    """The files of `collect` that were regular files, in base64."""
    files_truncated: bool = False
    """Some of them are left out: the server had no room for them (`max_collect_mb`, `reply_memory_mb`)."""
    limits: Limits | None = None
    """The limits that held, with the server's defaults and maxima applied; absent if the program was neither run nor refused by
    its compiler."""
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    """`sampled`: memory is read every few hundredths of a second, so a program may pass its limit for that long."""


class VerdictBatch(_NativeModel):
    """One verdict per submission, in the order of the submissions."""

    verdicts: list[Verdict]


class Canary(_NativeModel):
    """One thing that was tried at start, to find the isolation that this machine gives."""

    name: str
    """Such as `user namespace`."""
    passed: bool
    detail: str = ""
    """What was seen, or why it failed."""


class Health(_NativeModel):
    """State of the server."""

    status: Literal["ok", "draining"] = "ok"
    version: str
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    canaries: list[Canary]
    """What the tier was found by."""
    preloads: list[str]
    """Sets of modules that warm interpreters hold."""
    num_slots: int
    """Programs that compute at once; more run while some of them sleep."""
    num_running: int
    queue_length: int
    """Submissions that wait for a slot."""
    queue_capacity: int
    estimated_wait_s: float
    """How long a submission of the client that asks would wait for a slot if it came now."""
    languages: list[str]
    max_batch_items: int
    default_limits: Limits
    """The limits of a submission that names none."""
    max_limits: Limits
    """What larger limits are lowered to."""


class FieldError(_NativeModel):
    """One wrong field, by its path, like `submissions.3.code`."""

    field: str
    message: str


class Rejection(_NativeModel):
    """Body of every refusal."""

    detail: str
    errors: list[FieldError] = []
