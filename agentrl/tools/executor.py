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
import math
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from jsonschema.exceptions import best_match

from agentrl import clock
from agentrl.errors import ConfigError, DataError, RolloutError, ToolError, UnexplainedError
from agentrl.tools.base import Episode, GivesFinalReward, Tool, ToolSchema
from agentrl.tools.function_tool import FunctionTool
from agentrl.tools.schema_check import validator_of
from agentrl.tools.tool_thread import ToolThread
from agentrl.tools.verl_adapter import VerlToolAdapter
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus
from agentrl.user_code import contained, described, text_of

logger = logging.getLogger(__name__)
T = TypeVar("T")

_GRACE_S = 1.0
"""Extra seconds after the deadline for a tool that reports its own time-out, before it is cancelled."""

_MAX_REASON_CHARACTERS = 300


class ToolExecutor:
    """Runs calls against tools; one instance per worker serves many episodes at once."""

    def __init__(
        self, tools: Mapping[str, Tool], *, timeout_s: float, max_calls_per_turn: int, start_timeout_s: float
    ) -> None:
        """Take the tools.

        Args:
            tools: tools, keyed by name.
            timeout_s: time limit of one call, queueing included.
            max_calls_per_turn: limit per turn; further calls are refused.
            start_timeout_s: time limit of the start of one tool.

        Raises:
            ToolError: a tool's schema is not valid (`validator_of`).
        """
        self._tools = dict(tools)
        self._timeout_s = timeout_s
        self._max_calls_per_turn = max_calls_per_turn
        self._start_timeout_s = start_timeout_s
        self._validators = {name: validator_of(tool.schema) for name, tool in self._tools.items()}
        self._threads = {
            name: ToolThread(f"tool `{name}`") for name, tool in self._tools.items() if _runs_user_code(tool)
        }
        self._abandoned: set[asyncio.Future[ToolResult]] = set()

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
            ToolError: a tool cannot work, or raised an unexpected exception.
            RolloutError: a service that a tool needs does not answer.
            ConfigError: a tool's settings are wrong.
        """
        try:
            for name, tool in self._tools.items():
                await self._start(name, tool)
        except BaseException:
            await self.aclose()
            raise

    async def execute(
        self, calls: Sequence[ToolCall], episode: Episode, *, deadline: Deadline
    ) -> tuple[ToolResult, ...]:
        """Run `calls` concurrently; return the results in the order of the calls.

        Raises:
            RolloutError: a tool's infrastructure failed; the other calls are cancelled.
            DataError: a tool cannot use the prompt's data, or raised an unexpected exception; the other calls are cancelled.
            ToolError: a tool broke its contract.
        """
        taken, surplus = calls[: self._max_calls_per_turn], calls[self._max_calls_per_turn :]
        tasks = [asyncio.create_task(self._answer(call, episode, deadline)) for call in taken]
        refusal = f"not run: only the first {self._max_calls_per_turn} calls of a turn are"
        try:
            return (*await asyncio.gather(*tasks), *(_failure(ToolStatus.TOO_MANY_CALLS, refusal) for _ in surplus))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def final_rewards(self, episode: Episode) -> dict[str, float]:
        """Return the tools' rewards for the whole episode, keyed by tool name; call it before `end_episode`.

        Raises:
            RolloutError: a tool's infrastructure failed, or it did not answer in time.
            DataError: a tool raised an unexpected exception, or gave no finite number.
        """
        givers = {name: tool for name, tool in self._tools.items() if isinstance(tool, GivesFinalReward)}
        tasks = {name: self._begin(name, giver.final_reward(episode)) for name, giver in givers.items()}
        if not tasks:
            return {}
        _, late = await asyncio.wait(tasks.values(), timeout=self._timeout_s)
        rewards: dict[str, float] = {}
        for name, task in tasks.items():
            if task in late:
                task.cancel()
                raise RolloutError(f"tool `{name}`: no final reward in {self._timeout_s:g} s")
            given = _checked_reward(_value_of(task, name), name)
            if given is not None:
                rewards[name] = given
        return rewards

    async def end_episode(self, episode: Episode) -> None:
        """Let every tool release the state of `episode`; a tool's failure is logged, and the others continue."""
        await self._each("end_episode", {name: tool.end_episode(episode) for name, tool in self._tools.items()})

    async def aclose(self) -> None:
        """Close every tool."""
        for task in self._abandoned:
            task.cancel()
        await self._each("aclose", {name: tool.aclose() for name, tool in self._tools.items()})
        for thread in self._threads.values():
            thread.close()

    async def _start(self, name: str, tool: Tool) -> None:
        task = self._begin(name, tool.start())
        try:
            # Not `timeout`: it would wait until `start` has handled the cancellation, which a blocked one never does.
            await asyncio.wait({task}, timeout=self._start_timeout_s)
            if not task.done():
                raise ToolError(
                    f"tool `{name}`: `start` did not return in {self._start_timeout_s:g} s. Fix it, or raise "
                    "`rollout.start_timeout_s`"
                )
            if task.cancelled():
                raise ToolError(f"tool `{name}`: cannot be started: `start` cancelled itself")
            task.result()
        except (ConfigError, RolloutError, ToolError):
            raise
        except Exception as error:
            # `start` may be user code, and may raise anything.
            raise ToolError(f"tool `{name}`: cannot be started: {described(error)}") from error
        finally:
            task.cancel()

    def _begin(self, name: str, coroutine: Coroutine[Any, Any, T]) -> asyncio.Future[T]:
        """Run a tool's method on the tool's event loop."""
        thread = self._threads.get(name)
        return asyncio.create_task(coroutine) if thread is None else thread.run(coroutine)

    async def _each(self, what: str, coroutines: Mapping[str, Coroutine[Any, Any, None]]) -> None:
        tasks = {name: self._begin(name, coroutine) for name, coroutine in coroutines.items()}
        if not tasks:
            return
        _, late = await asyncio.wait(tasks.values(), timeout=self._timeout_s)
        for name, task in tasks.items():
            if task in late:
                task.cancel()
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
        try:
            error = best_match(self._validators[call.name].iter_errors(call.arguments))
        except (
            OverflowError,
            ValueError,
            RecursionError,
        ) as error:  # a number or a nesting that the checks cannot hold
            return _failure(ToolStatus.INVALID_ARGUMENTS, f"invalid arguments: {error}")
        if error is None:
            return None
        where = f"`{'.'.join(map(str, error.absolute_path))}`: " if error.absolute_path else ""
        return _failure(ToolStatus.INVALID_ARGUMENTS, f"invalid arguments: {where}{error.message}")

    async def _call(self, tool: Tool, call: ToolCall, episode: Episode, deadline: Deadline) -> ToolResult:
        allowed = deadline.capped(self._timeout_s)
        allowed_s = allowed.remaining_s()
        task = self._begin(call.name, tool.call(episode, call.arguments, deadline=allowed))
        try:
            # Not `wait_for`: it would wait until the tool has handled the cancellation, which a broken one may never do.
            done, _ = await asyncio.wait({task}, timeout=allowed_s + _GRACE_S)
        finally:
            if not task.done():
                self._abandon(task)
        if not done:
            return _failure(ToolStatus.TIMEOUT, f"no answer in {allowed_s:.3g} s")
        return _outcome(task, call)

    def _abandon(self, task: asyncio.Future[ToolResult]) -> None:
        self._abandoned.add(task)
        task.add_done_callback(self._forget)
        task.cancel()

    def _forget(self, task: asyncio.Future[ToolResult]) -> None:
        self._abandoned.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("tool call: failed after its time limit", exc_info=error)


def _runs_user_code(tool: Tool) -> bool:
    is_ours = type(tool).__module__.partition(".")[0] == "agentrl"
    return not is_ours or isinstance(tool, FunctionTool | VerlToolAdapter)


def _value_of(task: asyncio.Future[T], name: str) -> T:
    if task.cancelled():
        raise RolloutError(f"tool `{name}`: the call cancelled itself")
    error = task.exception()
    if isinstance(error, RolloutError | DataError | ToolError):
        raise error
    if isinstance(error, OSError):
        raise RolloutError(f"tool `{name}`: {type(error).__name__}: {text_of(error)}") from error
    if isinstance(error, Exception):
        logger.debug("tool `%s`: a call failed", name, exc_info=error)
        raise UnexplainedError.of(f"tool `{name}`", error) from error
    if error is not None:
        raise error  # the process must end
    return task.result()


def _checked_reward(given: Any, name: str) -> float | None:
    """Return a tool's reward as a float; refuse what is not a finite number."""
    if given is None:
        return None
    try:
        reward = contained(float, given)
    except Exception:  # noqa: BLE001 - `__float__` may be user code; torch raises RuntimeError for several elements
        reward = math.nan
    if not math.isfinite(reward):
        raise UnexplainedError(
            f"tool `{name}`: its reward is {given!r:.100}, and must be a finite number", cause="no number"
        )
    return reward


def _outcome(task: asyncio.Future[ToolResult], call: ToolCall) -> ToolResult:
    result = _value_of(task, call.name)
    if not isinstance(result, ToolResult):
        raise ToolError(
            f"tool `{call.name}`: `call` returned a `{type(result).__name__}`; it must return an `agentrl.types.ToolResult`"
        )
    if not isinstance(result.text, str) or not isinstance(result.status, ToolStatus):
        raise ToolError(
            f"tool `{call.name}`: `call` returned a `ToolResult` with `status` {result.status!r:.50} and a "
            f"`{type(result.text).__name__}` as `text`; they must be a `ToolStatus` and a `str`"
        )
    return result if result.reward is None else replace(result, reward=_checked_reward(result.reward, call.name))


def _failure(status: ToolStatus, reason: str) -> ToolResult:
    if len(reason) > _MAX_REASON_CHARACTERS:
        reason = reason[:_MAX_REASON_CHARACTERS] + " ..."
    return ToolResult(status=status, text=f"failure: {reason}")
