"""The `Tool` protocol, and the plain data that describes a tool before any worker has built it."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agentrl.types import Deadline, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """What the policy is told about a tool, in the words of the chat template (JSON schema for `parameters`)."""

    name: str
    description: str
    parameters: dict[str, Any]

    def as_template_dict(self) -> dict[str, Any]:
        """Return the form that chat templates take in `tools=`."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolConfig:
    """A tool as plain data: this, and never a live tool, is what the runner sends to the workers.

    Example: `ToolConfig(class_name="agentrl.tools.python_tool.PythonTool", config={"host_addr": "127.0.0.1",
    "host_port": 8088}, tool_schema=None)`; a schema of None takes the one that the class declares.
    """

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    tool_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a tool may know of the trajectory that calls it: stateful tools key their state by `episode_id`."""

    episode_id: str
    prompt_id: str
    extra: dict[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """One instance per worker, built from a `ToolConfig` by `Class(config: dict, schema: ToolSchema | None)`.

    The constructor does no I/O; `start` makes the sessions. It and all other methods run on one event loop: the worker's for
    the tools of this package, one in a thread of its own for any other, so that blocking code stops nobody else.
    """

    schema: ToolSchema

    async def start(self) -> None:
        """Open sessions; raise `ToolError` if the tool cannot work."""
        ...

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Answer one call.

        Raises:
            RolloutError: the tool's infrastructure failed, which is not the policy's fault; so does an `OSError`.
            DataError: what the prompt brings (`episode.extra`) cannot be used.
        """
        ...

    async def end_episode(self, episode: Episode) -> None:
        """Free what the tool keeps for this trajectory."""
        ...

    async def aclose(self) -> None:
        """Close the sessions."""
        ...


@runtime_checkable
class GivesFinalReward(Protocol):
    """A tool that has something to say about a finished episode, such as how good the state is that it keeps for it."""

    async def final_reward(self, episode: Episode) -> float | None:
        """Return a reward that is added to that of the tool's last result; None for none. `end_episode` comes after it."""
        ...
