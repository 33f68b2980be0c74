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
"""PATH_MAX of Linux; applies before a path is normalized."""


def as_file_path(path: str) -> str:
    """Return the normalized form of a path, which clients may write as `./a//b` or below one of `FOLDERS`.

    Raises:
        ValueError: it leaves the program's folder, or is too long.
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
        return base64.b64decode(content)  # ignores line breaks, as SandboxFusion does
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"must be base64: {error}") from error


_Path = Annotated[str, AfterValidator(_is_file_path)]
_Content = Annotated[bytes, BeforeValidator(_from_base64, json_schema_input_type=str)]
_LEAST_MEMORY_MB = 32
_TimeLimit = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class CommandRunStatus(StrEnum):
    """End of a command."""

    FINISHED = "Finished"
    """The command ended by itself, whatever its exit code, or at a limit other than time."""
    TIME_LIMIT_EXCEEDED = "TimeLimitExceeded"
    ERROR = "Error"
    """Part of the format; here, such an error fails the whole request."""


class RunStatus(StrEnum):
    """Status of a request."""

    SUCCESS = "Success"
    FAILED = "Failed"
    """The compiler or the program did not end with exit code 0."""
    SANDBOX_ERROR = "SandboxError"
    """The request failed without the program's fault; see `message`."""


class _RunRequest(BaseModel):
    """Fields of both kinds of request; unknown fields are ignored, as in SandboxFusion."""

    memory_limit_MB: int = Field(default=-1, ge=-(2**31), lt=2**31)
    """Memory limit in MiB; less than 1 takes the server's default."""
    files: dict[_Path, _Content | None] = Field(default={}, max_length=512)
    """Files that exist before the program starts, in base64; those without content are left out."""
    fetch_files: list[_Path] = Field(default=[], max_length=63)
    """Files to bring back."""

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        check_folders(self.given_files)
        return self

    @property
    def given_files(self) -> dict[str, bytes]:
        """The files that have content, by normalized path."""
        return {as_file_path(path): content for path, content in self.files.items() if content is not None}

    @property
    def absolute_path(self) -> str | None:
        """One of the absolute paths, if any."""
        return next((path for path in (*self.files, *self.fetch_files) if path.startswith("/")), None)

    def uses(self, folder: str) -> bool:
        """Return whether one of the paths lies below `folder`."""
        paths = map(posixpath.normpath, (*self.files, *self.fetch_files))
        return any(path.startswith(f"{folder}/") for path in paths)

    @property
    def wanted_files(self) -> list[str]:
        """The normalized paths of `fetch_files`."""
        return [as_file_path(path) for path in self.fetch_files]

    @property
    def memory_bytes(self) -> int | None:
        """The memory limit, if one is given; a limit too small for any program is raised."""
        return None if self.memory_limit_MB < 1 else max(self.memory_limit_MB, _LEAST_MEMORY_MB) * 1024 * 1024


class RunCodeRequest(_RunRequest):
    """One program."""

    code: SourceText
    language: str = Field(max_length=64)
    """Language, as SandboxFusion names it, such as `nodejs`."""
    stdin: str | None = None
    compile_timeout: _TimeLimit = 10.0
    """Time limit of the compiler in seconds; lowered to the server's maximum."""
    run_timeout: _TimeLimit = 10.0
    """CPU time as well as wall clock, in seconds; lowered to the server's maximum."""


class RunJupyterRequest(_RunRequest):
    """The cells of one notebook; all are run in order, whatever they raise."""

    cells: list[str] = Field(max_length=256)
    kernel: Literal["python3"] = "python3"
    cell_timeout: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Time limit of one cell in seconds; a cell that takes longer gets a `TimeoutError`. 0: no limit."""
    total_timeout: _TimeLimit = 45.0
    """Time limit of all cells together, as `run_timeout`."""

    @field_validator("files")
    @classmethod
    def _check_cell_folder(cls, files: dict[str, bytes | None]) -> dict[str, bytes | None]:
        if any(as_file_path(path).split("/")[0] == CELL_FOLDER for path in files):
            raise ValueError(f"`{CELL_FOLDER}` is the folder of the cells")
        return files


class CommandRunResult(BaseModel):
    """Result of a compiler or a program."""

    status: CommandRunStatus
    execution_time: float | None = None
    """Wall clock in seconds."""
    cpu_time: float | None = None
    return_code: int | None = None
    """Exit code, or minus the number of the signal that ended it; absent at a time limit."""
    stdout: str | None = None
    stderr: str | None = None


class _RunResponse(BaseModel):
    """Fields of both kinds of answer."""

    status: RunStatus
    message: str = ""
    executor_pod_name: str | None = None
    """Part of the format; there are no pods here."""
    files: dict[str, str] = {}
    """The files of `fetch_files` that are regular files, in base64, by their requested names."""


class RunCodeResponse(_RunResponse):
    """Answer of `/run_code`."""

    compile_result: CommandRunResult | None = None
    """Result of the compiler; absent for languages that are not compiled."""
    run_result: CommandRunResult | None = None
    """Absent if the program never ran."""


class CellRunResult(BaseModel):
    """Output, display and error of one cell."""

    stdout: str
    stderr: str
    display: Annotated[list[dict[str, Any]], FailFast()]
    """Displayed values by content type; `text/plain` is always among them."""
    error: Annotated[list[dict[str, Any]], FailFast()]
    """`ename`, `evalue` and the lines of the `traceback`; empty if it raised nothing."""


class RunJupyterResponse(_RunResponse):
    """Answer of `/run_jupyter`."""

    driver: CommandRunResult | None = None
    """Result of the cells' interpreter."""
    cells: list[CellRunResult] = []
    """Results of the finished cells: fewer than cells if the interpreter died or ran out of time."""
