"""The built-in tool `jupyter_code(code)`: a notebook per trajectory, whose variables live from call to call."""

import asyncio
from typing import Any, Literal

from agentrl.config.plain import read_plain_config
from agentrl.errors import JudgeUnavailableError, ToolError
from agentrl.judge.client import InvalidSubmissionError
from agentrl.judge.connection import NO_CONTEXT, JudgeKeys, ToolContext
from agentrl.judge.sessions import OpenSession, SessionClient, SessionKilledError
from agentrl.judge.stats import JudgeStats
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.python_tool import LIMIT_REASONS, STATUSES, failure_reason, require_parameters_of_code
from agentrl.types import Deadline, ToolResult, ToolStatus
from code_judge_server.schemas import VerdictStatus
from code_judge_server.sessions.schemas import CellResult

JUPYTER_TOOL = "agentrl.tools.jupyter_tool.JupyterTool"

JUPYTER_TOOL_SCHEMA = ToolSchema(
    name="jupyter_code",
    description="Run a cell in a Python notebook and return what it prints and its last expression. Variables are kept.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The cell."}},
        "required": ["code"],
    },
)

_START_TIMEOUT_S = 10.0
_KILLED = "a cell killed the notebook"
_RESTARTED = "The notebook was restarted: its variables are lost."


class JupyterToolConfig(JudgeKeys):
    """Keys of the tool: the address of the judge."""

    type: Literal["native"] = "native"


class JupyterTool:
    """Runs the cells of a trajectory in a session of its own, which opens with the first and closes with the episode.

    A cell that fails leaves the variables as they were before it.
    """

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None, context: ToolContext = NO_CONTEXT) -> None:
        """Check the config; `schema` may rename or describe the tool, None takes the tool's own.

        Raises:
            ConfigError: a wrong key, or no address of a judge.
            ToolError: the schema asks for other arguments than `code`.
        """
        settings = read_plain_config(JupyterToolConfig, config, source=f"tool `{JUPYTER_TOOL}`")
        self.schema = schema or JUPYTER_TOOL_SCHEMA
        require_parameters_of_code(self.schema, {"code"}, where=f"tool `{JUPYTER_TOOL}`")
        judges = settings.address(context.judge, owner=f"tool `{JUPYTER_TOOL}`")
        self._client = SessionClient(judges.urls, token=judges.token)
        self._sessions: dict[str, asyncio.Task[OpenSession]] = {}

    async def start(self) -> None:
        """Check that a judge answers, and can hold sessions.

        Raises:
            ToolError: no judge answers, they refuse the token, or they isolate too weakly.
        """
        try:
            await self._client.start(timeout_s=_START_TIMEOUT_S)
        except JudgeUnavailableError as error:
            await self._client.aclose()
            raise ToolError(f"tool `{self.schema.name}`: {error}") from error

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Run `arguments["code"]` after the trajectory's earlier cells.

        Raises:
            JudgeUnavailableError: no session or no result in time, or the session is gone.
        """
        if episode.episode_id not in self._sessions:  # a task: further calls of the same turn wait for the same session
            self._sessions[episode.episode_id] = asyncio.create_task(self._client.open(deadline=deadline))
        session = await asyncio.shield(self._sessions[episode.episode_id])
        try:
            result = await self._client.run_cell(session, arguments["code"], deadline=deadline)
        except InvalidSubmissionError as error:
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: {error}")
        except SessionKilledError:
            await self._close(episode.episode_id)
            return ToolResult(status=ToolStatus.ERROR, text=f"failure: {_KILLED}\n{_RESTARTED}")
        if result.session_closed:
            await self._close(episode.episode_id)
        return ToolResult(
            status=STATUSES.get(result.status, ToolStatus.ERROR),
            text=_text_of(result),
            truncated=result.stdout_truncated or result.stderr_truncated,
            queue_s=result.queue_time_s,
        )

    async def end_episode(self, episode: Episode) -> None:
        """Close the trajectory's session."""
        await self._close(episode.episode_id)

    async def aclose(self) -> None:
        """Close all sessions."""
        for episode_id in list(self._sessions):
            await self._close(episode_id)
        await self._client.aclose()

    def take_judge_stats(self) -> JudgeStats:
        """Return the counts of cells since the last call."""
        return self._client.take_stats()

    async def _close(self, episode_id: str) -> None:
        if (opening := self._sessions.pop(episode_id, None)) is None:
            return
        opening.cancel()
        await asyncio.wait([opening])
        if not opening.cancelled() and opening.exception() is None:
            await self._client.close(opening.result())


def _text_of(result: CellResult) -> str:
    """Return a result as the policy reads it: as of the stateless tool, with the last expression or the traceback."""
    lines = ["success" if result.status is VerdictStatus.ACCEPTED else f"failure: {_reason(result)}"]
    shown = "\n".join(display["text/plain"] for display in result.display if "text/plain" in display)
    traceback = "" if result.error is None else result.error.traceback
    stderr = "" if result.session_closed else result.stderr  # the judge's own words
    for name, text in (
        ("stdout", result.stdout),
        ("stderr", stderr),
        ("result", shown),
        ("traceback", traceback),
    ):
        if text.rstrip("\n"):
            lines += [f"{name}:", text.rstrip("\n")]
    if result.session_closed:
        lines.append(_RESTARTED)
    return "\n".join(lines)


def _reason(result: CellResult) -> str:
    if result.error is not None:
        return f"{result.error.name}: {result.error.value}"
    is_killed = result.session_closed and result.status not in LIMIT_REASONS
    return _KILLED if is_killed else failure_reason(result)
