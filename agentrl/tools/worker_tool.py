"""A tool that workers of an extra role answer (`cluster.extra_roles`), such as a model with its own process or GPU."""

import asyncio
import contextlib
from typing import Any, ClassVar, Literal
from zlib import crc32

from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.errors import (
    ArgumentMismatchError,
    CallFailedError,
    NotBuiltError,
    RolloutError,
    ToolError,
    WorkerDiedError,
)
from agentrl.judge.connection import NO_CONTEXT, ToolContext
from agentrl.tools.base import Episode, ToolSchema
from agentrl.types import Deadline, ToolResult, ToolStatus

WORKER_TOOL = "agentrl.tools.worker_tool.WorkerTool"
EPISODE_ID = "episode_id"
"""Argument that names the episode; all others are the policy's."""


class WorkerToolConfig(PlainConfig):
    """The keys of a tool that workers of an extra role answer."""

    type: Literal["native"] = "native"
    role: str
    """Name in `cluster.extra_roles`."""
    method: str
    """Method of its class, called as `method(episode_id=..., **arguments)`.

    It returns the result's text, anything but a `str` as JSON. An exception is a failed call whose text the policy reads; an
    `agentrl.errors.RolloutError` blames the infrastructure, and the trajectory is retried.
    """
    end_method: str | None = None
    """Method that is called with `episode_id` when an episode ends; absent: the workers keep no state."""


class WorkerTool:
    """Calls the worker of an episode; always the same one, so that it may keep state."""

    _answered: ClassVar[dict[tuple[str, str], str]] = {}
    """Worker process of an episode, keyed by role and episode: several tools may ask the same worker."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None, context: ToolContext = NO_CONTEXT) -> None:
        """Take the handles of the role's workers; without a schema it is a `ToolError`."""
        if schema is None:
            raise ToolError(f"tool `{WORKER_TOOL}`: no `tool_schema`. Add one to the tool YAML")
        self._config = read_plain_config(WorkerToolConfig, config, source=f"tool `{WORKER_TOOL}`")
        self._workers = context.workers.get(self._config.role, ())
        self.schema = schema
        self._known: dict[str, str] = {}
        """Worker process that answered this tool, keyed by episode."""

    async def start(self) -> None:
        """Check that there are workers, which were started with the cluster; a `ToolError` says if not."""
        if not self._workers:
            raise ToolError(f"tool `{WORKER_TOOL}`: no worker has the role `{self._config.role}`")

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Call the worker; an exception of its method is a failed call.

        Raises:
            RolloutError: the worker died, now or since the episode's first call, so its state of the episode is lost.
            ToolError: its method does not take the schema's arguments.
        """
        if EPISODE_ID in arguments:
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: there is no argument `{EPISODE_ID}`")
        worker, named = self._worker_of(episode), {EPISODE_ID: episode.episode_id, **arguments}
        try:
            process = self._known[episode.episode_id] = await self._process_of(episode, worker, deadline)
            text = await worker.agentrl_call(process, self._config.method, named)
        except (WorkerDiedError, NotBuiltError) as error:
            # Not re-raised as it is: after an engine's death the retry gets another seed (`agentrl.agent_loop.retries`).
            raise RolloutError(f"tool `{WORKER_TOOL}`: {error}") from error
        except CallFailedError as error:
            return ToolResult(status=ToolStatus.ERROR, text=f"failure: {error}")
        except ArgumentMismatchError as error:
            if arguments.keys() - self.schema.parameters.get("properties", {}).keys():
                return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: invalid arguments: {error}")
            raise ToolError(
                f"tool `{self.schema.name}`: its method `{self._config.method}` does not take the arguments of `tool_schema`: "
                f"{error}. Change one of them"
            ) from error
        return ToolResult(status=ToolStatus.OK, text=text)

    async def end_episode(self, episode: Episode) -> None:
        """Call `end_method` of the worker, if it has answered the episode."""
        self._answered.pop((self._config.role, episode.episode_id), None)
        process = self._known.pop(episode.episode_id, None)
        if process is not None and self._config.end_method is not None:
            with contextlib.suppress(RolloutError):  # it died, and its state with it
                named = {EPISODE_ID: episode.episode_id}
                await self._worker_of(episode).agentrl_call(process, self._config.end_method, named)

    async def aclose(self) -> None:
        """Do nothing: the workers end with the cluster."""

    async def _process_of(self, episode: Episode, worker: Any, deadline: Deadline) -> str:
        """Return the worker process that has answered the episode, or will now.

        Raises:
            RolloutError: it does not answer in half of the remaining time.
        """
        key = (self._config.role, episode.episode_id)
        if key not in self._answered:
            try:
                async with asyncio.timeout(deadline.remaining_s() / 2):
                    process = await worker.agentrl_process()
            except TimeoutError as error:
                raise RolloutError(f"tool `{WORKER_TOOL}`: its worker does not answer") from error
            self._answered.setdefault(key, process)  # another call of the turn may have been first
        return self._answered[key]

    def _worker_of(self, episode: Episode) -> Any:
        return self._workers[crc32(episode.episode_id.encode()) % len(self._workers)]
