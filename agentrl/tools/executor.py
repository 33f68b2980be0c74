"""Executor of the tool calls of one turn: checks them, runs them concurrently, and returns one result per call.

A failure is handled by its cause:

- The policy (a call that does not parse, an unknown tool, wrong arguments, no answer in time, too many calls in a turn):
  a `ToolResult` that the policy reads.
- The infrastructure: a `RolloutError`, which passes through; an `OSError` (no connection, no answer) is treated as one.
- The prompt's data: a `DataError`, which passes through. Any other exception becomes an `UnexplainedError`, because a bug that
  affects one call in a million must not end a run.
- The tool's contract: a `ToolError`, for a tool that returns anything but a `ToolResult`.

User tools run on an event loop in a thread of their own (`tool_thread`): user code that blocks, also in an `async def`, delays
only the calls of the same tool. Such calls do NOT run concurrently; those of a plain `def` do (`function_tool`).
"""

import asyncio
import logging
import re
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from agentrl import clock
from agentrl.errors import RolloutError, ToolError
from agentrl.rewards.score import finite_number
from agentrl.tools.base import Episode, GivesFinalReward, Tool, ToolSchema
from agentrl.tools.function_tool import FunctionTool
from agentrl.tools.tool_thread import ToolThread, finish_start, finished, result_of
from agentrl.tools.verl_adapter import VerlToolAdapter
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus
from agentrl.user_code import described, gathered

_NAME = re.compile(r"[\w.-]{1,64}")
"""Names that every chat template and parser of calls carries unchanged: no blanks, quotes or brackets."""
logger = logging.getLogger(__name__)
T = TypeVar("T")

_GRACE_S = 1.0
"""Extra seconds after the deadline for a tool that reports its own time-out, before it is cancelled."""

MAX_CALLS_PER_TURN = 16
"""Further calls of a turn are refused and count as failed, to protect the judge's queue from a policy that repeats itself."""
_MAX_REASON_CHARACTERS = 300


class ToolExecutor:
    """Runs calls against tools; one instance per worker serves many episodes at once."""

    def __init__(self, tools: Mapping[str, Tool], *, timeout_s: float) -> None:
        """Take the tools, keyed by name, and the time limit of one call with its queueing.

        Raises:
            ToolError: a tool's schema is not valid (`validator_of`).
        """
        self._tools = dict(tools)
        self._timeout_s = timeout_s
        self._validators = {name: validator_of(tool.schema) for name, tool in self._tools.items()}
        self._threads = {
            name: ToolThread(f"tool `{name}`") for name, tool in self._tools.items() if _runs_user_code(tool)
        }

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools, in their order."""
        return tuple(self._tools.values())

    @property
    def timeout_s(self) -> float:
        """Time limit of one call, queueing included."""
        return self._timeout_s

    @property
    def schemas(self) -> tuple[ToolSchema, ...]:
        """The tools' schemas, shown to the policy in this order."""
        return tuple(tool.schema for tool in self._tools.values())

    async def start(self) -> None:
        """Start every tool on its event loop; those already started are closed if one cannot start.

        Raises:
            ToolError: a tool raised an unexpected exception or did not start in time; an `AgentRLError` passes through.
        """
        try:
            for name, tool in self._tools.items():
                await finish_start(self._begin(name, tool.start()), f"tool `{name}`", error_class=ToolError)
        except BaseException:
            await self.aclose()
            raise

    async def execute(
        self, calls: Sequence[ToolCall], episode: Episode, *, deadline: Deadline
    ) -> tuple[ToolResult, ...]:
        """Run `calls` concurrently; return the results in the order of the calls.

        Raises:
            RolloutError, DataError, ToolError: see the module's docstring; the other calls are cancelled.
        """
        taken, surplus = calls[:MAX_CALLS_PER_TURN], calls[MAX_CALLS_PER_TURN:]
        results = await gathered(self._answer(call, episode, deadline) for call in taken)
        refusal = f"not run: only the first {MAX_CALLS_PER_TURN} calls of a turn are"
        return (*results, *(_failure(ToolStatus.TOO_MANY_CALLS, refusal) for _ in surplus))

    async def final_rewards(self, episode: Episode) -> dict[str, float]:
        """Return the tools' rewards for the whole episode, keyed by tool name; call it before `end_episode`.

        Raises:
            RolloutError, DataError: as `execute`; also for a tool that does not answer in time, or gives no finite number.
        """

        async def ask(name: str, giver: GivesFinalReward) -> float | None:
            task = await self._run(name, giver.final_reward(episode), self._timeout_s)
            if task is None:
                raise RolloutError(f"tool `{name}`: no final reward in {self._timeout_s:g} s")
            return _checked_reward(result_of(task, f"tool `{name}`"), name)

        givers = {name: tool for name, tool in self._tools.items() if isinstance(tool, GivesFinalReward)}
        rewards = await gathered(ask(name, giver) for name, giver in givers.items())
        return {name: reward for name, reward in zip(givers, rewards, strict=True) if reward is not None}

    async def end_episode(self, episode: Episode) -> None:
        """Let every tool release the state of `episode`; a tool's failure is logged, and the others continue."""
        await gathered(
            self._finish(name, "end_episode", tool.end_episode(episode)) for name, tool in self._tools.items()
        )

    async def aclose(self) -> None:
        """Close every tool."""
        await gathered(self._finish(name, "aclose", tool.aclose()) for name, tool in self._tools.items())
        for thread in self._threads.values():
            thread.close()

    async def _run(self, name: str, coroutine: Coroutine[Any, Any, T], limit_s: float) -> asyncio.Future[T] | None:
        return await finished(self._begin(name, coroutine), limit_s)

    def _begin(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a tool's method on the tool's event loop."""
        thread = self._threads.get(name)
        return asyncio.create_task(coroutine) if thread is None else thread.run(coroutine)

    async def _finish(self, name: str, what: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = await self._run(name, coroutine, self._timeout_s)
        if task is None:
            logger.warning("tool `%s`: `%s` did not end in %g s", name, what, self._timeout_s)
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("tool `%s`: `%s` failed: %s", name, what, described(error))

    async def _answer(self, call: ToolCall, episode: Episode, deadline: Deadline) -> ToolResult:
        started = clock.now()
        result = self._refusal(call) or await self._call(self._tools[call.name], call, episode, deadline)
        # A lone surrogate, which JSON escapes can smuggle in, cannot be tokenised or written as UTF-8.
        text = result.text.encode("utf-8", "replace").decode("utf-8")
        return replace(result, text=text, wall_time_s=clock.now() - started)

    def _refusal(self, call: ToolCall) -> ToolResult | None:
        if call.parse_error:
            return _failure(ToolStatus.UNPARSABLE, call.parse_error)
        if call.name not in self._tools:
            names = ", ".join(f"`{name}`" for name in self._tools) or "none"
            return _failure(ToolStatus.UNKNOWN_TOOL, f"unknown tool `{call.name[:64]}`; tools: {names}")
        problem = argument_problem(self._validators[call.name], call.arguments)
        return None if problem is None else _failure(ToolStatus.INVALID_ARGUMENTS, f"invalid arguments: {problem}")

    async def _call(self, tool: Tool, call: ToolCall, episode: Episode, deadline: Deadline) -> ToolResult:
        allowed = deadline.capped(self._timeout_s)
        allowed_s = allowed.remaining_s()
        task = await self._run(call.name, tool.call(episode, call.arguments, deadline=allowed), allowed_s + _GRACE_S)
        if task is None:
            return _failure(ToolStatus.TIMEOUT, f"no answer in {allowed_s:.3g} s")
        result = result_of(task, f"tool `{call.name}`")
        if not isinstance(result, ToolResult):
            raise ToolError(
                f"tool `{call.name}`: `call` returned a `{type(result).__name__}`; it must return an "
                "`agentrl.types.ToolResult`"
            )
        if not isinstance(result.text, str) or not isinstance(result.status, ToolStatus):
            raise ToolError(
                f"tool `{call.name}`: `call` returned a `ToolResult` with `status` {result.status!r:.50} and a "
                f"`{type(result.text).__name__}` as `text`; they must be a `ToolStatus` and a `str`"
            )
        return replace(result, reward=_checked_reward(result.reward, call.name))


def _runs_user_code(tool: Tool) -> bool:
    is_ours = type(tool).__module__.partition(".")[0] == "agentrl"
    return not is_ours or isinstance(tool, FunctionTool | VerlToolAdapter)


def _checked_reward(given: Any, name: str) -> float | None:
    return None if given is None else finite_number(given, f"tool `{name}`: its reward")


def _failure(status: ToolStatus, reason: str) -> ToolResult:
    if len(reason) > _MAX_REASON_CHARACTERS:
        reason = reason[:_MAX_REASON_CHARACTERS] + " ..."
    return ToolResult(status=status, text=f"failure: {reason}")


def validator_of(schema: ToolSchema) -> Draft202012Validator:
    """Return what checks the arguments of a tool.

    Raises:
        ToolError: its name or its parameters are not what a chat template can show, or what a call can have.
    """
    where, parameters = f"tool `{schema.name}`", schema.parameters
    if not isinstance(schema.name, str) or not _NAME.fullmatch(schema.name):
        raise ToolError(
            f"tool {schema.name!r:.100}: its name must be 1 to 64 letters, digits, `_`, `-` or `.`, as templates write it "
            "between quotes and tags; rename it"
        )
    try:
        Draft202012Validator.check_schema(parameters)
    except SchemaError as error:
        raise ToolError(f"{where}: its parameters are no JSON schema: {error.message}") from error
    return Draft202012Validator(parameters, registry=Registry())  # without one, it would ask the network


def argument_problem(validator: Draft202012Validator, arguments: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the arguments of a call, with the place; None if nothing is.

    Raises:
        ToolError: a `$ref` of the schema leads nowhere.
    """
    try:
        error = best_match(validator.iter_errors(arguments))
    except Unresolvable as error:
        raise ToolError(f"tool schema: {error}; put what a `$ref` names into the `$defs` of the parameters") from error
    except (OverflowError, ValueError, RecursionError) as error:  # a number or a nesting that the checks cannot hold
        return str(error)
    if error is None:
        return None
    where = f"`{'.'.join(map(str, error.absolute_path))}`: " if error.absolute_path else ""
    return f"{where}{error.message}"
