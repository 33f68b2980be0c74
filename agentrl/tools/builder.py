"""Builds tools from plain data, in the workers (`loader` reads the data)."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.config.class_path import build, import_by_path
from agentrl.errors import ConfigError, ToolError
from agentrl.judge.connection import NO_CONTEXT, ToolContext
from agentrl.tools.base import Tool, ToolConfig, ToolSchema
from agentrl.tools.mcp.keys import MCP_TOOL
from agentrl.tools.verl_adapter import VerlToolAdapter, is_verl_tool


def build_tools(configs: Sequence[ToolConfig], context: ToolContext = NO_CONTEXT) -> dict[str, Tool]:
    """Return the tools, not started yet, in order, keyed by the name that the policy calls.

    Raises:
        ToolError: a class cannot be found or built, does not follow the `Tool` protocol, or two tools share a name.
    """
    tools: dict[str, Tool] = {}
    mcp_servers: dict[str, Any] = {}  # shared by the tools of a server
    for config in configs:
        try:
            tool = _build(config, context, mcp_servers)
        except ConfigError as error:
            raise ToolError(str(error)) from error
        name = tool.schema.name
        if name in tools:
            raise ToolError(
                f"tool `{config.label}`: its name `{name}` is taken by another tool; rename one of them in its "
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


def _build(config: ToolConfig, context: ToolContext, mcp_servers: dict[str, Any]) -> Tool:
    where = f"tool `{config.class_name}`"
    tool_class = import_by_path(config.class_name, key="tools: class_name")
    if not inspect.isclass(tool_class):
        raise ToolError(f"{where}: it is no class; a function is named by `function: {config.class_name}` instead")
    schema = None if config.tool_schema is None else read_tool_schema(config.tool_schema)
    given = {"config": config.config, "schema": schema}
    if config.class_name == MCP_TOOL:
        given["servers"] = mcp_servers
    if is_verl_tool(tool_class):
        given, tool_class = {"tool_class": tool_class, **given}, VerlToolAdapter
    tool = build(tool_class, given, Tool, where=where, context=context)
    if not isinstance(getattr(tool, "schema", None), ToolSchema):
        raise ToolError(
            f"{where}: it has no schema; give it a `tool_schema` in the tool YAML, or let it set `self.schema` to an "
            "`agentrl.tools.base.ToolSchema`"
        )
    return tool
