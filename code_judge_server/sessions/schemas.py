"""The formats of sessions.

`POST /v1/sessions` takes a `SessionRequest` and gives a `SessionState`; `POST /v1/sessions/{id}/cells` takes a `CellRequest`
and gives a `CellResult`; `POST /v1/sessions/{id}/rollback` takes a `RollbackRequest` and gives a `SessionState`, as
`GET /v1/sessions/{id}` does; `DELETE /v1/sessions/{id}` gives nothing. A session or snapshot that does not exist (any more) is
a 404, and so is every session on a server that cannot hold any (isolation tiers C and D); a session too many is a 429.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from code_judge_server.schemas import IsolationTier, Limits, RunResult
from code_judge_server.wire_fields import Collected, FileContent, GivenFiles, PreloadName, SourceText


class _SessionModel(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class SessionRequest(_SessionModel):
    """A session to open."""

    limits: Limits = Limits()
    """Memory, tasks and disk are those of the session, with all its snapshots; the others are defaults for each cell."""
    preload: PreloadName | None = None
    """Module set that the session starts with; absent: the largest of the server."""


class SessionState(_SessionModel):
    """An open session."""

    session_id: str
    snapshot: int
    """Snapshot that the next cell starts from, unless it names another; 0 is the empty session."""
    snapshots: list[int]
    """Snapshots that a cell can start from; the oldest are dropped when there are too many."""
    limits: Limits
    idle_timeout_s: float
    """Time without requests after which the session is closed."""


class CellRequest(_SessionModel):
    """A cell to run."""

    code: SourceText
    """Python, with `await` allowed at the top level; the value of a last expression is displayed, unless `;` ends it."""
    stdin: str = ""
    from_snapshot: int | None = None
    """Snapshot that the cell starts from; absent: the current one. Another makes a branch."""
    keep_on_error: bool = False
    """Keep the state of a cell that raises as a snapshot too, as in Jupyter."""
    files: GivenFiles = {}
    """Files written to the session's folder before the cell runs, replacing files of these names; in base64."""
    collect: Collected = []
    """Files to bring back from there after the cell, whatever it raised."""
    cpu_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    wall_time_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    deadline_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds from the receipt of the request until it is answered, waiting included."""


class RollbackRequest(_SessionModel):
    """A snapshot to return to."""

    snapshot: int


class CellError(_SessionModel):
    """Exception of a cell."""

    name: str
    value: str
    traceback: str


class CellResult(RunResult):
    """Result of one cell; `accepted` means that it ran to its end, and that the session has its state."""

    session_id: str
    snapshot: int
    """The current snapshot from now on: the cell's own if it ran to its end or `keep_on_error` kept it, else the previous
    one."""
    display: list[dict[str, str]]
    """Displayed values, each by media type: `[{"text/plain": "4"}]`; pictures, such as `image/png`, are in base64. The
    session's own process reports them, like `error` and `files`."""
    error: CellError | None
    files: dict[str, FileContent] = Field(default={})
    """The files of `collect` that were regular files, in base64."""
    files_truncated: bool = False
    """Files were left out because the server had no room for them (`max_collect_mb`, `reply_memory_mb`)."""
    session_closed: bool = False
    """The cell ended its session."""
    queue_time_s: float = 0.0
    isolation: IsolationTier
    memory_enforcement: Literal["cgroup", "sampled"]
