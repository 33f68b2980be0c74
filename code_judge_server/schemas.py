"""What the judge speaks over HTTP: its native format, and the format of code-judge that rStar2-Agent's client sends.

Native, `POST /v1/submissions/batch`: a `SubmissionBatch` in, a `VerdictBatch` out, one verdict per submission in the same
order, 200 whatever the verdicts. 400 names the wrong fields (`Rejection`), 401 a missing token, 413 a batch or body that
is too large, 429 with `Retry-After` a full queue.

Code-judge, `POST /run` and `/judge`, with `/batch` and `/long-batch` below each: the `CodeJudge...` models.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field


class Language(StrEnum):
    """Languages that the native endpoints take."""

    PYTHON = "python"
    CPP = "cpp"


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
    RUNTIME_ERROR = "runtime_error"
    """Another exit code, a signal, or too many processes."""
    COMPILE_ERROR = "compile_error"
    INTERNAL_ERROR = "internal_error"
    """The judge failed; nothing is known about the program, and it may be sent again."""
    QUEUE_TIMEOUT = "queue_timeout"
    """The program never ran; it may be sent again."""
    CANCELLED = "cancelled"
    """The request's `deadline_s` passed while the program ran."""


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("must not contain NUL characters")
    return text


Identifier = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_without_nul)]
SourceText = Annotated[str, AfterValidator(_without_nul)]
"""Source code; no compiler or interpreter takes a NUL."""


class _NativeModel(BaseModel):
    """Base of the native records: immutable, and an unknown field is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_NativeModel):
    """What one program may use; an absent limit is the server's maximum, and more than that is refused with a 400."""

    cpu_time_s: float | None = Field(default=None, gt=0)
    """CPU time of the program and everything it starts."""
    wall_time_s: float | None = Field(default=None, gt=0)
    """Wall clock, which catches programs that sleep."""
    memory_bytes: int | None = Field(default=None, ge=32 * 1024 * 1024)
    """Resident memory of the program and everything it starts."""
    output_bytes: int | None = Field(default=None, ge=1)
    """Bytes of stdout, and as many of stderr; one more ends the program with `output_limit_exceeded`."""


class Submission(_NativeModel):
    """One program to run.

    Example: `{"id": "a", "language": "python", "code": "print(input())", "stdin": "5", "expected_output": "5"}`.
    """

    id: Identifier
    """Chosen by the client, unique in its batch; the verdict carries it back."""
    language: Language
    code: SourceText
    stdin: str = ""
    expected_output: str | None = None
    """Compared with stdout after `strip()` of both; absent: exit code 0 is all that is asked."""
    limits: Limits = Limits()


class SubmissionBatch(_NativeModel):
    """Programs to run, in any number that the server's `max_batch_items` allows."""

    submissions: list[Submission] = Field(min_length=1)
    deadline_s: float | None = Field(default=None, gt=0)
    """Seconds from the receipt of the request by which it is answered: what has not started by then is `queue_timeout`,
    what still runs is killed and `cancelled`. Absent: as long as it takes."""


class Verdict(_NativeModel):
    """What became of one submission.

    Example: `{"id": "a", "status": "accepted", "exit_code": 0, "stdout": "5\\n", "isolation": "D", ...}`.
    """

    id: str
    status: VerdictStatus
    exit_code: int | None = None
    """Exit code of the program (of the compiler, for `compile_error`); absent if it did not run or a signal ended it."""
    signal: int | None = None
    """Number of the signal that ended the program, whoever sent it."""
    stdout: str = ""
    """Decoded as UTF-8, cut to the server's `max_reply_chars`; the folder that the program ran in reads `/sandbox`."""
    stderr: str = ""
    """As `stdout`; for `compile_error` what the compiler said, for `internal_error` what went wrong."""
    stdout_truncated: bool = False
    """There was more than the reply holds."""
    stderr_truncated: bool = False
    stdout_invalid_utf8: bool = False
    """Bytes that are not UTF-8 were replaced by U+FFFD."""
    stderr_invalid_utf8: bool = False
    cpu_time_s: float = 0.0
    """User and system time of the program and everything it started, without compiling."""
    wall_time_s: float = 0.0
    """From the start of the program to its end, without compiling."""
    queue_time_s: float = 0.0
    """From the receipt of the request to the start."""
    peak_memory_bytes: int = 0
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    """`sampled`: memory is read every few hundredths of a second, so a program may pass its limit for that long."""


class VerdictBatch(_NativeModel):
    """One verdict per submission, in the order of the submissions."""

    verdicts: list[Verdict]


class Health(_NativeModel):
    """State of the server."""

    status: Literal["ok"] = "ok"
    version: str
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
    num_slots: int
    """Programs that run at once at most."""
    num_running: int
    queue_length: int
    """Submissions that wait for a slot."""
    queue_capacity: int
    languages: list[Language]
    max_batch_items: int
    max_limits: Limits
    """The largest limits that a submission may name, and the limits of one that names none."""


class FieldError(_NativeModel):
    """One wrong field, by its path, like `submissions.3.code`."""

    field: str
    message: str


class Rejection(_NativeModel):
    """Body of every 4xx reply."""

    detail: str
    errors: list[FieldError] = []


class CodeJudgeReason(StrEnum):
    """Why a code-judge submission failed, where it was not the program's own doing."""

    NONE = ""
    INTERNAL_ERROR = "internal_error"
    WORKER_TIMEOUT = "worker_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    INVALID_INPUT = "invalid_input"


class CodeJudgeSubmission(BaseModel):
    """One program in the format of code-judge; unknown fields are ignored, as there."""

    sub_id: SourceText | None = None
    """Absent: the server makes one up."""
    type: Literal["python", "cpp", "math"]
    """`math` is known to the format but not judged here: its result says `invalid_input`."""
    options: dict[str, str] | None = None
    """Part of the format; no option is defined."""
    solution: SourceText
    input: str | None = None
    expected_output: str | None = None


class CodeJudgeBatch(BaseModel):
    """Several programs; the results keep their order."""

    sub_id: SourceText | None = None
    type: Literal["batch"] = "batch"
    submissions: list[CodeJudgeSubmission] = Field(min_length=1)


class CodeJudgeJudgement(BaseModel):
    """Answer of `/judge`, and one item of `/judge/batch`."""

    sub_id: str
    success: bool
    """`run_success` and, where an output was expected, that output."""
    run_success: bool
    """Ran to its end with exit code 0."""
    cost: float
    """Wall clock of the program in seconds."""
    reason: CodeJudgeReason


class CodeJudgeResult(CodeJudgeJudgement):
    """Answer of `/run`, and one item of `/run/batch`."""

    stdout: str | None = None
    stderr: str | None = None


class CodeJudgeJudgementBatch(BaseModel):
    """Answer of `/judge/batch` and `/judge/long-batch`."""

    sub_id: str
    results: list[CodeJudgeJudgement]


class CodeJudgeResultBatch(BaseModel):
    """Answer of `/run/batch` and `/run/long-batch`."""

    sub_id: str
    results: list[CodeJudgeResult]


class CodeJudgeStatus(BaseModel):
    """Answer of `/status`."""

    queue: int
    """Submissions that wait for a slot."""
    num_workers: int
