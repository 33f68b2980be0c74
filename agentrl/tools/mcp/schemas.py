"""The tools of a server: which of them the policy gets, and whether they are still the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mcp_types import Tool

from agentrl.errors import ConfigError, ToolChangedError
from agentrl.tools.mcp.keys import McpServerConfig

ToolParameters = dict[str, Any]
_NOTES = {"title", "description", "examples", "$comment"}
_OF_NAMES = {"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"}
"""Keywords whose keys are names, not keywords."""


def chosen_tools(server: McpServerConfig, tools: Sequence[Tool]) -> list[Tool]:
    """Return the tools of a server that the policy gets, in the server's order.

    Raises:
        ConfigError: it has none, or `include`, `rename` or `idempotent` name tools that it does not have.
    """
    names = [tool.name for tool in tools]
    for field in ("include", "rename", "idempotent"):
        for name in getattr(server, field) or ():
            if name not in names:
                shown = ", ".join(f"`{name}`" for name in names)
                raise ConfigError(f"{server.label}: `{field}` names the tool `{name}`; it has {shown or 'none'}")
    chosen = [tool for tool in tools if server.include is None or tool.name in server.include]
    if not chosen:
        raise ConfigError(f"{server.label}: it has no tools")
    return chosen


def is_idempotent(server: McpServerConfig, tool: Tool) -> bool:
    """Return whether a call may be repeated: the config says so, or the server where the config is silent."""
    if server.idempotent is not None:
        return tool.name in server.idempotent
    hints = tool.annotations
    return hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)


def check_unchanged(server: McpServerConfig, tools: Sequence[Tool], wanted: Mapping[str, ToolParameters]) -> None:
    """Compare the tools of a started server with those that the policy was shown; descriptions may differ.

    Raises:
        ToolChangedError: a tool is gone, or takes other arguments.
    """
    offered = {tool.name: tool.input_schema for tool in tools}
    for name, parameters in wanted.items():
        way_out = "Pin the server's version and start the run again"
        if name not in offered:
            raise ToolChangedError(f"{server.label}: its tool `{name}` is gone since the start of the run. {way_out}")
        if _bare(offered[name]) != _bare(parameters):
            raise ToolChangedError(
                f"{server.label}: its tool `{name}` takes other arguments than at the start of the run. {way_out}"
            )


def _bare(schema: Any) -> Any:
    """Return a JSON schema without texts for people, which may hold a date or a time zone."""
    if isinstance(schema, list):
        return [_bare(item) for item in schema]
    return dict(_bare_items(schema)) if isinstance(schema, dict) else schema


def _bare_items(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, dict):
            yield key, {name: _bare(part) for name, part in value.items()}
        elif key not in _NOTES:
            yield key, _bare(value)
