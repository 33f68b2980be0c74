"""Asks MCP servers for their tools, in the driver: workers, prompts and checks need the schemas before a run starts."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mcp_types import Tool

from agentrl.errors import ConfigError, RolloutError
from agentrl.tools.base import ToolConfig
from agentrl.tools.mcp.connection import McpConnection
from agentrl.tools.mcp.keys import MCP_TOOL, McpToolConfig
from agentrl.tools.mcp.schemas import chosen_tools, is_idempotent
from agentrl.tools.mcp.stdio import ServerGuard
from agentrl.user_code import gathered


def with_listed_tools(configs: Sequence[ToolConfig]) -> list[ToolConfig]:
    """Replace each MCP server by its tools; every server is started, or reached, for that and ended again.

    Raises:
        ConfigError: a server cannot be started, or has not the tools that its entry names.
    """
    # In a thread: the caller may run inside an event loop.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _listed(configs)).result()


async def _listed(configs: Sequence[ToolConfig]) -> list[ToolConfig]:
    return [tool for tools in await gathered(map(_tools_of, configs)) for tool in tools]


async def _tools_of(config: ToolConfig) -> list[ToolConfig]:
    settings = McpToolConfig(**config.config) if config.class_name == MCP_TOOL else None
    if settings is None or settings.tool:
        return [config]
    tools = await _ask(settings)
    return [_tool_config(settings, tool) for tool in chosen_tools(settings.server, tools)]


async def _ask(settings: McpToolConfig) -> list[Tool]:
    guard = ServerGuard() if settings.server.command is not None else None
    connection = McpConnection(settings.server, folder=Path(settings.folder), guard=guard)
    try:
        return await connection.open()
    except RolloutError as error:
        raise ConfigError(str(error)) from error
    finally:
        await connection.aclose()
        if guard is not None:
            await guard.aclose()


def _tool_config(settings: McpToolConfig, tool: Tool) -> ToolConfig:
    of_tool = settings.model_copy(update={"tool": tool.name, "is_idempotent": is_idempotent(settings.server, tool)})
    function = {
        "name": settings.server.rename.get(tool.name, tool.name),
        "description": tool.description or "",
        "parameters": tool.input_schema,
    }
    return ToolConfig(
        class_name=MCP_TOOL, config=of_tool.model_dump(), tool_schema={"type": "function", "function": function}
    )
