"""The format of code-judge, which rStar2-Agent's client speaks.

`POST /run` and `/judge` take one submission, `/batch` and `/long-batch` below each take many.
"""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field

from code_judge_server.wire_fields import SourceText


class CodeJudgeReason(StrEnum):
    """Reason of a failed code-judge submission, if it is not the program's fault."""

    NONE = ""
    INTERNAL_ERROR = "internal_error"
    WORKER_TIMEOUT = "worker_timeout"
    QUEUE_TIMEOUT = "queue_timeout"
    INVALID_INPUT = "invalid_input"


class CodeJudgeSubmission(BaseModel):
    """One program in the format of code-judge; unknown fields are ignored, as there."""

    sub_id: SourceText | None = None
    """Id of the submission; absent: the server generates one."""
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
    """`run_success` and the expected output, if one is given."""
    run_success: bool
    """The program ended with exit code 0."""
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
