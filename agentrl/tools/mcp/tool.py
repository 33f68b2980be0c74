"""A tool of an MCP server."""

from pathlib import Path
from typing import Any

from mcp_types import (
    AudioContent,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from pydantic_core import to_json

from agentrl.config.plain import read_plain_config
from agentrl.errors import RolloutError, ToolError
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.mcp.connection import CallRefusedError, CallTimeoutError
from agentrl.tools.mcp.keys import MCP_TOOL, McpToolConfig
from agentrl.tools.mcp.server import CallHungError, McpCall, McpServers, ServerPerTrajectory, SharedServer
from agentrl.types import Deadline, ToolResult, ToolStatus

_MAX_CHARACTERS = 1 << 17
"""Characters of a result that are kept; tokenising a longer one, to cut it, would hold up the other trajectories."""


class McpTool:
    """Calls a tool of a server; all tools of a server share its connections."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None, servers: dict[str, McpServers]) -> None:
        """Take the tool's config, its schema as the driver read it, and the servers of this worker, keyed by their configs."""
        settings = read_plain_config(McpToolConfig, config, source=f"tool `{MCP_TOOL}`")
        if schema is None:
            raise ToolError(f"tool `{MCP_TOOL}`: no schema; the tool YAML names a server by `type: mcp`")
        self.schema = schema
        self._settings = settings
        key = to_json([settings.server.model_dump(), settings.folder]).decode()
        kind = ServerPerTrajectory if settings.server.scope == "trajectory" else SharedServer
        self._servers = servers.setdefault(key, kind(settings.server, Path(settings.folder)))
        self._servers.wanted[settings.tool] = schema.parameters

    async def start(self) -> None:
        """Start the server, if no other of its tools has.

        Raises:
            ToolError: it cannot be started, or its tools have changed since the driver asked for them.
        """
        try:
            await self._servers.start()
        except RolloutError as error:
            raise ToolError(str(error)) from error

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Call the tool; an error that it reports is a failed call.

        Raises:
            RolloutError: the server died, or cannot be reached.
            ToolChangedError: the server was restarted, and its tools have changed.
        """
        call = McpCall(tool=self._settings.tool, arguments=arguments, is_idempotent=self._settings.is_idempotent)
        allowed_s = deadline.remaining_s()
        try:
            result = await self._servers.call(call, episode, deadline=deadline)
        except CallTimeoutError:
            return ToolResult(status=ToolStatus.TIMEOUT, text=f"failure: no answer in {allowed_s:.3g} s")
        except CallHungError:
            lost = "\nThe server was restarted: its state is lost." if self._has_state else ""
            return ToolResult(status=ToolStatus.TIMEOUT, text=f"failure: no answer in {allowed_s:.3g} s{lost}")
        except CallRefusedError as error:
            return ToolResult(status=ToolStatus.ERROR, text=f"failure: {error}")
        text = _text_of(result)
        cut = len(text) - _MAX_CHARACTERS
        if cut > 0:
            text = f"{text[:_MAX_CHARACTERS]}\n[cut: {cut} more characters]"
        if result.is_error:
            return ToolResult(status=ToolStatus.ERROR, text=f"failure: {text}", truncated=cut > 0)
        return ToolResult(status=ToolStatus.OK, text=text, truncated=cut > 0)

    async def end_episode(self, episode: Episode) -> None:
        """End the trajectory's server, if it has its own."""
        await self._servers.end_episode(episode)

    async def aclose(self) -> None:
        """End the servers, of all tools that share them."""
        await self._servers.aclose()

    @property
    def _has_state(self) -> bool:
        return self._settings.server.scope == "trajectory"


def _text_of(result: CallToolResult) -> str:
    """Return the texts of a result, and a note for what is none; without content, its structured content as JSON."""
    if not result.content and result.structured_content is not None:
        return to_json(result.structured_content).decode()
    return "\n".join(map(_shown, result.content))


def _shown(block: Any) -> str:
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource(resource=TextResourceContents() as resource):
            return resource.text
        case ImageContent() | AudioContent():
            return f"[{block.type}: {block.mime_type}, {len(block.data) * 3 // 4} bytes, not shown]"
        case ResourceLink():
            return f"[resource: {block.uri}]"
        case _:
            return f"[{block.type}, not shown]"
