"""Lets a tool written for verl (`create`, `execute`, `calc_reward`, `release`) load unchanged; needs no verl.

An instance is created at an episode's first call and released at its end. As in verl, `extra_info.tools_kwargs` of the row
(or its own column `tools_kwargs`) gives `create_kwargs`, `execute_kwargs` and `release_kwargs` by tool name, and an exception
from `execute` is a failed call that the policy reads. The step reward of `execute` and, for the whole episode, that of
`calc_reward` are in `ToolResult.reward`; they count where the config says so (`agentrl.rewards.tool_rewards`).
"""

import asyncio
import inspect
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig
from agentrl.errors import ToolError
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.result_text import as_result, failed_call
from agentrl.types import Deadline, ToolResult
from agentrl.user_code import contained_coroutine


class FunctionView(PlainConfig):
    """The key `function` of a `SchemaView`."""

    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any]
    strict: bool = False


class SchemaView(PlainConfig):
    """The schema of a tool as the tool YAML has it and verl tools read it: `.function.name`, `.model_dump()`."""

    type: str = Field(pattern="^function$")
    function: FunctionView


def is_verl_tool(tool_class: type) -> bool:
    """Return whether a class has verl's methods and not agentrl's."""
    return all(hasattr(tool_class, name) for name in ("create", "execute", "release")) and not hasattr(
        tool_class, "call"
    )


class VerlToolAdapter:
    """Adapts a verl tool to agentrl's `Tool` protocol."""

    def __init__(self, tool_class: type, config: dict[str, Any], schema: ToolSchema | None) -> None:
        """Build the verl tool; `schema` None takes that of `get_openai_tool_schema`.

        Raises:
            ToolError: it has no schema.
        """
        view = None if schema is None else SchemaView.model_validate(schema.as_template_dict())
        self._tool = tool_class(config, view)
        self.schema = schema or self._own_schema()
        self._instances: dict[str, tuple[Episode, asyncio.Future[Any]]] = {}

    async def start(self) -> None:
        """Do nothing: verl tools open their sessions themselves."""

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Execute one call on the episode's instance.

        It returns `(response, reward, metrics)`, or the response alone: a string, a dict or an object with `text`.
        """
        try:
            outcome = await contained_coroutine(self._execute(episode, arguments))
        except Exception as error:  # noqa: BLE001 - of the user's tool
            return failed_call(error)
        response, reward, *_ = (*outcome, None) if isinstance(outcome, tuple) else (outcome, None)
        if isinstance(response, dict):
            response = response.get("text", response)
        elif not isinstance(response, str):
            response = getattr(response, "text", response)
        return as_result(response, reward=reward)

    async def final_reward(self, episode: Episode) -> float | None:
        """Return the result of `calc_reward` for the episode; None if the tool lacks it, or was not called."""
        if episode.episode_id not in self._instances or not hasattr(self._tool, "calc_reward"):
            return None
        opened_for, creation = self._instances[episode.episode_id]
        if not creation.done() or creation.cancelled() or creation.exception() is not None:
            return None
        kwargs = self._kwargs(opened_for, "calc_reward_kwargs")
        return await self._tool.calc_reward(_instance_id(creation.result()), **kwargs)

    async def end_episode(self, episode: Episode) -> None:
        """Release the episode's instance, if there is one."""
        if episode.episode_id not in self._instances:
            return
        opened_for, creation = self._instances.pop(episode.episode_id)
        if not creation.done():
            creation.cancel()
        elif not creation.cancelled() and creation.exception() is None:
            await self._tool.release(_instance_id(creation.result()), **self._kwargs(opened_for, "release_kwargs"))

    async def aclose(self) -> None:
        """Cancel running creations of instances."""
        for _, creation in self._instances.values():
            creation.cancel()

    async def _execute(self, episode: Episode, arguments: dict[str, Any]) -> Any:
        # One task per episode: the concurrent calls of a turn share one instance.
        if episode.episode_id not in self._instances:
            creating = self._tool.create(episode.episode_id, **self._create_kwargs(episode))
            self._instances[episode.episode_id] = (episode, asyncio.ensure_future(contained_coroutine(creating)))
        _, creation = self._instances[episode.episode_id]
        # Shielded: a call that times out must not cancel the creation for other calls.
        created = await asyncio.shield(creation)
        return await self._tool.execute(_instance_id(created), arguments, **self._kwargs(episode, "execute_kwargs"))

    def _create_kwargs(self, episode: Episode) -> dict[str, Any]:
        """Return the keywords as older verl passes them, and also as newer verl does: all in `create_kwargs`."""
        kwargs = self._kwargs(episode, "create_kwargs")
        parameters = inspect.signature(self._tool.create).parameters.values()
        names_it = any(parameter.name == "create_kwargs" for parameter in parameters)
        takes_it = names_it or (kwargs and any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters))
        return kwargs | {"create_kwargs": kwargs} if takes_it else kwargs

    def _kwargs(self, episode: Episode, kind: str) -> dict[str, Any]:
        extra_info = episode.extra.get("extra_info")
        of_row = extra_info.get("tools_kwargs") if isinstance(extra_info, dict) else None
        of_tools = episode.extra.get("tools_kwargs") or of_row or {}
        of_tool = of_tools.get(self.schema.name) or {}
        # Parquet adds missing keys to every row, as None.
        return {key: value for key, value in (of_tool.get(kind) or {}).items() if value is not None}

    def _own_schema(self) -> ToolSchema:
        declared = self._tool.get_openai_tool_schema()
        if declared is None:
            raise ToolError(
                f"tool `{type(self._tool).__name__}`: it declares no schema; give it a `tool_schema` in the tool YAML"
            )
        function = declared.model_dump(exclude_unset=True, exclude_none=True)["function"]
        return ToolSchema(
            name=function["name"], description=function.get("description", ""), parameters=function["parameters"]
        )


def _instance_id(created: Any) -> Any:
    """Return the id from the result of `create`: `(id, response)` in newer verl, the id in older."""
    return created[0] if isinstance(created, tuple) else created
