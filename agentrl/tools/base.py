"""The `Tool` protocol, and plain data that describes a tool before a worker builds it."""

from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from agentrl.types import Deadline, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSchema:
    """Description of a tool for the policy, in the chat template's terms (`parameters` is a JSON schema)."""

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
    """A tool as plain data, which the runner sends to the workers.

    Example: `ToolConfig(class_name="agentrl.tools.python_tool.PythonTool", config={"host_addr": "127.0.0.1",
    "host_port": 8088}, tool_schema=None)`; a schema of None means the class's own.
    """

    class_name: str
    config: dict[str, Any] = field(default_factory=dict)
    tool_schema: dict[str, Any] | None = None

    @property
    def label(self) -> str:
        """Name in messages: that of the function, or of the class."""
        return self.config.get("function") or self.class_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """The trajectory that calls a tool, as the tool sees it; stateful tools key their state by `episode_id`."""

    episode_id: str
    prompt_id: str
    extra: dict[str, Any] = field(default_factory=dict)


class Tool(Protocol):
    """One instance per worker, built from a `ToolConfig` by `Class(config: dict, schema: ToolSchema | None)`.

    The constructor does no I/O; `start` opens sessions. `start` and all other methods run on one event loop: the worker's for
    the tools of this package, one in a separate thread for user code, so that blocking code delays no other tool.
    """

    schema: ToolSchema

    async def start(self) -> None:
        """Open sessions; raise `ToolError` if the tool cannot work."""
        ...

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Answer one call.

        Raises:
            RolloutError: the tool's infrastructure failed; an `OSError` means the same.
            DataError: the prompt's data (`episode.extra`) cannot be used.
        """
        ...

    async def end_episode(self, episode: Episode) -> None:
        """Free the tool's state of this trajectory."""
        ...

    async def aclose(self) -> None:
        """Close the sessions."""
        ...


@runtime_checkable
class GivesFinalReward(Protocol):
    """A tool that rewards a finished episode, such as by the final state of its environment."""

    async def final_reward(self, episode: Episode) -> float | None:
        """Return a reward, added to that of the tool's last result, or None; called before `end_episode`."""
        ...
