"""Builds tools from plain data, in the workers (`loader` reads the data)."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, cast

from agentrl.config.class_path import import_by_path
from agentrl.errors import ConfigError, ToolError
from agentrl.tools.base import Tool, ToolConfig, ToolSchema
from agentrl.tools.verl_adapter import VerlToolAdapter, is_verl_tool
from agentrl.user_code import contained, described, require_parameters

_METHODS = ("start", "call", "end_episode", "aclose")


def build_tools(configs: Sequence[ToolConfig]) -> dict[str, Tool]:
    """Return the tools, not started yet, in order, keyed by the name that the policy calls.

    Raises:
        ToolError: a class cannot be found or built, does not follow the `Tool` protocol, or two tools share a name.
    """
    tools: dict[str, Tool] = {}
    for config in configs:
        tool = _build(config)
        name = tool.schema.name
        if name in tools:
            raise ToolError(
                f"tool `{config.class_name}`: its name `{name}` is taken by another tool; rename one of them in its "
                "`tool_schema.function.name`"
            )
        tools[name] = tool
    return tools


def read_tool_schema(plain: Mapping[str, Any]) -> ToolSchema:
    """Return the schema of `{type: function, function: {name, description, parameters}}`."""
    function = plain["function"]
    return ToolSchema(
        name=function["name"], description=function.get("description", ""), parameters=function["parameters"]
    )


def _build(config: ToolConfig) -> Tool:
    where = f"tool `{config.class_name}`"
    try:
        tool_class = import_by_path(config.class_name, key="class_name")
    except ConfigError as error:
        raise ToolError(f"tools: {error}") from error
    if not inspect.isclass(tool_class):
        raise ToolError(f"{where}: it is no class; a function is named by `function: {config.class_name}` instead")
    schema = None if config.tool_schema is None else read_tool_schema(config.tool_schema)
    try:
        if is_verl_tool(tool_class):
            tool: Any = contained(VerlToolAdapter, tool_class, config.config, schema)
        else:
            _check_protocol(tool_class, where)
            tool = contained(cast(Any, tool_class), config.config, schema)
            _check_parameters(tool, where)
        known_schema = contained(getattr, tool, "schema", None)
    except ToolError:
        raise
    except Exception as error:
        # The user's constructor may raise anything.
        raise ToolError(f"{where}: cannot be built: {described(error)}") from error
    if not isinstance(known_schema, ToolSchema):
        raise ToolError(
            f"{where}: it has no schema; give it a `tool_schema` in the tool YAML, or let it set `self.schema` to an "
            "`agentrl.tools.base.ToolSchema`"
        )
    return tool


def _check_protocol(tool_class: type, where: str) -> None:
    for method in _METHODS:
        if not inspect.iscoroutinefunction(getattr(tool_class, method, None)):
            raise ToolError(
                f"{where}: it has no `async def {method}`; a tool has {', '.join(_METHODS)} (`agentrl.tools.base.Tool`)"
            )
    try:
        inspect.signature(tool_class).bind({}, None)
    except TypeError as error:
        raise ToolError(f"{where}: its constructor must take `(config, schema)`: {error}") from error


def _check_parameters(tool: Tool, where: str) -> None:
    try:
        require_parameters(tool.start)
        require_parameters(tool.call, "episode", "arguments", named=["deadline"])
        require_parameters(tool.end_episode, "episode")
        require_parameters(tool.aclose)
    except TypeError as error:
        raise ToolError(f"{where}: {error}") from error
