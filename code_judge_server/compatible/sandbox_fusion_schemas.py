"""The format of SandboxFusion, which verl and the package `sandbox-fusion` speak: `POST /run_code` and `/run_jupyter`."""

import base64
import binascii
import posixpath
from enum import StrEnum
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    FailFast,
    Field,
    TypeAdapter,
    field_validator,
    model_validator,
)

from code_judge_server.compatible.notebook_driver import CELL_FOLDER
from code_judge_server.wire_fields import FilePath, SourceText, check_folders

_FILE_PATH = TypeAdapter(FilePath)
FOLDERS = ("/mnt/", "/sandbox/")
"""The program's folder, in tiers A and B."""
_MAX_PATH_CHARS = 4096
"""Before it is brought into its plain form: PATH_MAX of Linux."""


def as_file_path(path: str) -> str:
    """Return the plain form of a path that their clients may write as `./a//b`, or with one of `FOLDERS` before it.

    Raises:
        ValueError: it leads out of the program's folder, or is too long.
    """
    if len(path) > _MAX_PATH_CHARS:
        raise ValueError(f"must be at most {_MAX_PATH_CHARS} characters long")
    plain = posixpath.normpath(path)
    if plain.startswith("/") and not plain.startswith(FOLDERS):
        raise ValueError(f"must be relative, or below one of {', '.join(FOLDERS)}")
    for folder in FOLDERS:
        plain = plain.removeprefix(folder)
    return _FILE_PATH.validate_python(plain)


def _is_file_path(path: str) -> str:
    as_file_path(path)
    return path


def _from_base64(content: object) -> object:
    if not isinstance(content, str):
        return content
    try:
        return base64.b64decode(content)  # as there, line breaks are passed over
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"must be base64: {error}") from error


_Path = Annotated[str, AfterValidator(_is_file_path)]
_Content = Annotated[bytes, BeforeValidator(_from_base64, json_schema_input_type=str)]
_LEAST_MEMORY_MB = 32
_TimeLimit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CommandRunStatus(StrEnum):
    """How a command ended."""

    FINISHED = "Finished"
    """By itself, whatever its exit code, or at another limit than that of time."""
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    ERROR = "Error"
    """Part of the format; what fails here is the whole request."""


class RunStatus(StrEnum):
    """What became of a request."""

    SUCCESS = "Success"
    FAILED = "Failed"
    """The compiler or the program ended otherwise than with exit code 0."""
    SANDBOX_ERROR = "SandboxError"
    """Not the program's doing: `message` tells."""


class _RunRequest(BaseModel):
    """What both kinds of request may name; unknown fields are ignored, as there."""

    memory_limit_MB: int = Field(default=-1, ge=-(2**31), lt=2**31)
    """Less than one is the server's default."""
    files: dict[_Path, _Content | None] = Field(default={}, max_length=512)
    """Files that are there before the program starts, in base64; those without content are left out."""
    fetch_files: list[_Path] = Field(default=[], max_length=63)
    """Files to bring back."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        check_folders(self.given_files)
        return self

    @property
    def given_files(self) -> dict[str, bytes]:
        """The files that have content, by the plain form of their paths."""
        return {as_file_path(path): content for path, content in self.files.items() if content is not None}

    @property
    def absolute_path(self) -> str | None:
        """One of the paths that are absolute, if any is."""
        return next((path for path in (*self.files, *self.fetch_files) if path.startswith("/")), None)

    def uses(self, folder: str) -> bool:
        """Return whether one of the paths lies below `folder`."""
        paths = map(posixpath.normpath, (*self.files, *self.fetch_files))
        return any(path.startswith(f"{folder}/") for path in paths)

    @property
    def wanted_files(self) -> list[str]:
        """The plain form of the paths of `fetch_files`."""
        return [as_file_path(path) for path in self.fetch_files]

    @property
    def memory_bytes(self) -> int | None:
        """The limit of memory, if one is named; what is too little for any program is raised."""
        return None if self.memory_limit_MB < 1 else max(self.memory_limit_MB, _LEAST_MEMORY_MB) * 1024 * 1024


class RunCodeRequest(_RunRequest):
    """One program."""

    code: SourceText
    language: str = Field(max_length=64)
    """In the words of SandboxFusion, such as `nodejs`."""
    stdin: str | None = None
    compile_timeout: _TimeLimit = 10.0
    """In seconds, like `run_timeout`; what is more than the server's maximum is lowered to it."""
    run_timeout: _TimeLimit = 10.0
    """CPU time as well as wall clock."""


class RunJupyterRequest(_RunRequest):
    """The cells of one notebook, run from the first to the last whatever they raise."""

    cells: list[str] = Field(max_length=256)
    kernel: Literal["python3"] = "python3"
    cell_timeout: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """In seconds; a cell that takes longer gets a `TimeoutError`. 0 is none."""
    total_timeout: _TimeLimit = 45.0
    """Of all cells, as `run_timeout`."""

    @field_validator("files")
    @classmethod
    def _check_cell_folder(cls, files: dict[str, bytes | None]) -> dict[str, bytes | None]:
        if any(as_file_path(path).split("/")[0] == CELL_FOLDER for path in files):
            raise ValueError(f"`{CELL_FOLDER}` is the folder of the cells")
        return files


class CommandRunResult(BaseModel):
    """How a compiler or a program ended."""

    status: CommandRunStatus
    execution_time: float | None = None
    """Wall clock in seconds."""
    cpu_time: float | None = None
    return_code: int | None = None
    """Minus the number of the signal that ended it; absent at a time limit."""
    stdout: str | None = None
    stderr: str | None = None


class _RunResponse(BaseModel):
    """What both kinds of answer tell."""

    status: RunStatus
    message: str = ""
    executor_pod_name: str | None = None
    """Part of the format; there are no pods here."""
    files: dict[str, str] = {}
    """Those of `fetch_files` that are regular files, in base64, under the names that were asked for."""


class RunCodeResponse(_RunResponse):
    """Answer of `/run_code`."""

    compile_result: CommandRunResult | None = None
    """Only for languages that are compiled."""
    run_result: CommandRunResult | None = None
    """Absent if the program never ran."""


class CellRunResult(BaseModel):
    """What one cell printed, showed and raised."""

    stdout: str
    stderr: str
    display: Annotated[list[dict[str, Any]], FailFast()]
    """By type of content; there is always `text/plain`."""
    error: Annotated[list[dict[str, Any]], FailFast()]
    """`ename`, `evalue` and the lines of the `traceback`; empty if it raised nothing."""


class RunJupyterResponse(_RunResponse):
    """Answer of `/run_jupyter`."""

    driver: CommandRunResult | None = None
    """How the interpreter of the cells ended."""
    cells: list[CellRunResult] = []
    """One for each cell that ended: fewer than were sent if the interpreter died, or its time was over."""
