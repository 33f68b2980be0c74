"""A tool that workers of an extra role answer (`cluster.extra_roles`), such as a model with a process, or a GPU, of its own.

The runner puts the handles of the started workers into the plain config; a handle is all that crosses a process border.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal
from zlib import crc32

from pydantic_core import to_json

from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.errors import NotBuiltError, RolloutError, ToolError, WorkerDiedError, WorkerError
from agentrl.tools.base import Episode, ToolConfig, ToolSchema
from agentrl.types import Deadline, ToolResult, ToolStatus

WORKER_TOOL = "agentrl.tools.worker_tool.WorkerTool"
_WORKERS = "workers"


class WorkerToolConfig(PlainConfig):
    """The keys of a tool that workers of an extra role answer."""

    type: Literal["native"] = "native"
    role: str
    """Name in `cluster.extra_roles`."""
    method: str
    """Method of its class, called as `method(episode_id=..., **arguments)`: what it returns is the result's text, anything but
    a `str` as JSON; what it raises is a failed call whose text the policy reads.
    """
    end_method: str | None = None
    """Method that is called with `episode_id` when an episode ends; absent: the workers keep nothing of it."""


class WorkerTool:
    """Calls the worker to which an episode belongs: always the same one, so that it may keep what the episode made."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        """Take the handles."""
        given = dict(config)
        self._workers: Sequence[Any] = given.pop(_WORKERS, ())
        self._config = read_plain_config(WorkerToolConfig, given, source=f"tool `{WORKER_TOOL}`")
        self.schema = schema

    async def start(self) -> None:
        """Do nothing more: the workers have been started with the cluster.

        Raises:
            ToolError: there are none.
        """
        if not self._workers:
            raise ToolError(f"tool `{WORKER_TOOL}`: no worker plays the role `{self._config.role}`")

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Have a worker answer; its death is the world's fault, what it raises is the call's."""
        if "episode_id" in arguments:
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text="failure: there is no argument `episode_id`")
        method = getattr(self._worker_of(episode), self._config.method)
        try:
            outcome = await method(episode_id=episode.episode_id, **arguments)
        except (WorkerDiedError, NotBuiltError) as error:
            # Not an engine's death, for which the next try would get another seed (`agentrl.agent_loop.tries`).
            raise RolloutError(f"tool `{WORKER_TOOL}`: {error}") from error
        except WorkerError as error:
            reason = str(error).strip().splitlines()[-1]  # of a traceback: `ValueError: there is no image 7`
            return ToolResult(status=ToolStatus.ERROR, text=f"failure: {reason}")
        except TypeError as error:  # of Ray, before anything is sent; what the method itself raises is a `WorkerError`
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: invalid arguments: {error}")
        text = outcome if isinstance(outcome, str) else to_json(outcome, fallback=str).decode()
        return ToolResult(status=ToolStatus.OK, text=text)

    async def end_episode(self, episode: Episode) -> None:
        """Tell the worker that the episode is over."""
        if self._config.end_method is not None:
            try:
                await getattr(self._worker_of(episode), self._config.end_method)(episode_id=episode.episode_id)
            except RolloutError:
                return  # it died, and what it kept with it

    async def aclose(self) -> None:
        """Do nothing: the workers end with the cluster."""

    def _worker_of(self, episode: Episode) -> Any:
        return self._workers[crc32(episode.episode_id.encode()) % len(self._workers)]


def with_workers(configs: Sequence[ToolConfig], workers: Mapping[str, Sequence[Any]]) -> list[ToolConfig]:
    """Return the configs with the handles of the workers that their tools call."""
    return [
        replace(tool, config=tool.config | {_WORKERS: tuple(workers[tool.config["role"]])})
        if tool.class_name == WORKER_TOOL
        else tool
        for tool in configs
    ]
