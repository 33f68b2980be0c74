"""Keys of an MCP server in the tool YAML, and what a worker gets of each of its tools."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from agentrl.config.plain import PlainConfig

MCP_TOOL = "agentrl.tools.mcp.tool.McpTool"


class McpServerConfig(PlainConfig):
    """The keys of an MCP server. Each of its tools becomes a tool of the policy."""

    type: Literal["mcp"] = "mcp"
    command: list[str] | None = Field(default=None, min_length=1)
    """Program and arguments of a server that a worker starts, in the folder of the tool YAML; it talks over stdio."""
    url: str | None = Field(default=None, pattern="^https?://")
    """Address of a server that runs already (streamable HTTP); instead of `command`."""
    env: dict[str, str] = Field(default_factory=dict, repr=False)
    """Environment variables for `command`; of the worker's own it gets `HOME`, `PATH`, `USER` and the like."""
    headers: dict[str, str] = Field(default_factory=dict, repr=False)
    """HTTP headers for `url`, such as `Authorization: Bearer ${oc.env:MY_TOKEN}`."""
    scope: Literal["worker", "trajectory"] = "worker"
    """`worker`: all trajectories of a worker share a server. `trajectory`: each has its own, for servers with state."""
    pool: int = Field(default=2, ge=0, le=256)
    """Servers per worker that wait for a trajectory (`scope: trajectory`)."""
    include: list[str] | None = Field(default=None, min_length=1)
    """Tools of the server that the policy sees, by the server's names; absent: all."""
    rename: dict[str, str] = Field(default_factory=dict)
    """Names for the policy, by the server's names."""
    idempotent: list[str] | None = None
    """Tools whose calls are repeated if a shared server dies; absent: those that it marks as idempotent or read-only."""

    @model_validator(mode="after")
    def _names_a_server(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either `command` or `url`")
        if self.env and self.command is None:
            raise ValueError("`env` belongs to `command`; use `headers` for a `url`")
        if self.headers and self.url is None:
            raise ValueError("`headers` belong to `url`; use `env` for a `command`")
        return self

    @property
    def label(self) -> str:
        """Name of the server in messages; arguments, headers, and user and query of an address may hold secrets."""
        if self.url is None:
            return f"MCP server `{(self.command or [''])[0]}`"
        url = urlsplit(self.url)
        return f"MCP server `{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}`"


class McpToolConfig(PlainConfig):
    """The config of one tool of a server, as plain data for the workers."""

    server: McpServerConfig
    folder: str
    """Folder of the tool YAML, in which the server runs."""
    tool: str = ""
    """The server's name of the tool; empty before the server was asked for its tools."""
    is_idempotent: bool = False
