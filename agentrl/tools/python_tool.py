"""The built-in tool `python_code_with_standard_io(code, input)`, which runs a program in the code judge, without state."""

from typing import Any, Literal

from agentrl.config.plain import read_plain_config
from agentrl.errors import JudgeUnavailableError, ToolError
from agentrl.judge.client import InvalidSubmissionError
from agentrl.judge.connection import NO_CONTEXT, JudgeConnection, ToolContext
from agentrl.judge.stats import JudgeStats
from agentrl.tools.base import Episode, ToolSchema
from agentrl.types import Deadline, ToolResult, ToolStatus
from code_judge_server.schemas import RunResult, Verdict, VerdictStatus

PYTHON_TOOL = "agentrl.tools.python_tool.PythonTool"

PYTHON_TOOL_SCHEMA = ToolSchema(
    name="python_code_with_standard_io",
    description="Run a Python program and return what it prints. Every call starts afresh.",
    parameters={
        "type": "object",
        "properties": {
            "code": {"type": "string", "description": "The program; it prints its results."},
            "input": {"type": "string", "description": "Text that the program reads from standard input."},
        },
        "required": ["code"],
    },
)

_START_TIMEOUT_S = 10.0

LIMIT_REASONS = {
    VerdictStatus.TIME_LIMIT_EXCEEDED: "time limit exceeded",
    VerdictStatus.MEMORY_LIMIT_EXCEEDED: "memory limit exceeded",
    VerdictStatus.OUTPUT_LIMIT_EXCEEDED: "output limit exceeded",
    VerdictStatus.COMPILE_ERROR: "compile error",
}

STATUSES = {VerdictStatus.ACCEPTED: ToolStatus.OK, VerdictStatus.TIME_LIMIT_EXCEEDED: ToolStatus.TIMEOUT}


class PythonToolConfig(JudgeConnection):
    """Keys of the tool: the connection to the judge."""

    type: Literal["native"] = "native"


class PythonTool:
    """Runs programs through one judge client per worker."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None, context: ToolContext = NO_CONTEXT) -> None:
        """Check the config; `schema` may rename or describe the tool, None takes the tool's own.

        Raises:
            ConfigError: a wrong key, or no address of a judge.
        """
        settings = read_plain_config(PythonToolConfig, config, source=f"tool `{PYTHON_TOOL}`")
        self.schema = schema or PYTHON_TOOL_SCHEMA
        require_parameters_of_code(self.schema, {"code", "input"}, where=f"tool `{PYTHON_TOOL}`")
        self._client = settings.client(context.judge, owner=f"tool `{PYTHON_TOOL}`")

    async def start(self) -> None:
        """Open the session, and check that a judge answers.

        Raises:
            ToolError: no judge answers, or they refuse the token.
        """
        await self._client.start()
        try:
            await self._client.require_one(timeout_s=_START_TIMEOUT_S)
        except JudgeUnavailableError as error:
            await self._client.aclose()
            raise ToolError(f"tool `{self.schema.name}`: {error}") from error

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Run `arguments["code"]` on `arguments["input"]`.

        Raises:
            JudgeUnavailableError: no verdict in time.
        """
        try:
            verdict = await self._client.run(arguments["code"], stdin=arguments.get("input", ""), deadline=deadline)
        except InvalidSubmissionError as error:
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: {error}")
        return ToolResult(
            status=STATUSES.get(verdict.status, ToolStatus.ERROR),
            text=result_text(verdict),
            truncated=verdict.stdout_truncated or verdict.stderr_truncated,
            queue_s=verdict.queue_time_s,
        )

    async def end_episode(self, episode: Episode) -> None:
        """Do nothing: the tool keeps no state."""

    async def aclose(self) -> None:
        """Close the session."""
        await self._client.aclose()

    def take_judge_stats(self) -> JudgeStats:
        """Return the judge client's counts since the last call."""
        return self._client.take_stats()


def require_parameters_of_code(schema: ToolSchema, known: set[str], *, where: str) -> None:
    """Raise ToolError for a schema with other parameters than `known`, or without the required `code`."""
    names = set(schema.parameters.get("properties", {}))
    if not names <= known or "code" not in schema.parameters.get("required", []):
        raise ToolError(
            f"{where}: its `tool_schema` has the parameters {sorted(names)}; it may have {sorted(known)}, and `code` is "
            "`required`"
        )


def result_text(verdict: Verdict) -> str:
    """Return a verdict as the policy reads it.

    The first line is `success` or `failure: <reason>`; then come non-empty `stdout:` and `stderr:`, each on a line before its
    text.
    """
    lines = ["success" if verdict.status is VerdictStatus.ACCEPTED else f"failure: {failure_reason(verdict)}"]
    for name, text in (("stdout", verdict.stdout), ("stderr", verdict.stderr)):
        if text.rstrip("\n"):
            lines += [f"{name}:", text.rstrip("\n")]
    return "\n".join(lines)


def failure_reason(result: RunResult) -> str:
    """Return why a program failed."""
    if result.status in LIMIT_REASONS:
        return LIMIT_REASONS[result.status]
    return f"exit code {result.exit_code}" if result.signal is None else f"killed by signal {result.signal}"
