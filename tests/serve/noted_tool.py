"""The demo's Python tool, which writes down the episodes that it has begun and ended."""

import asyncio
from pathlib import Path
from typing import Any

from agentrl.judge.connection import ToolContext
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.python_tool import PythonTool
from agentrl.types import Deadline, ToolResult

SLOW = "slow"


class NotedTool(PythonTool):
    """Leaves `ID.begun` and `ID.ended` in a folder; calls take long while it holds a file `slow`."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None, context: ToolContext) -> None:
        self._folder = Path(config["folder"])
        super().__init__({key: value for key, value in config.items() if key != "folder"}, schema, context)

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        (self._folder / f"{episode.episode_id}.begun").touch()
        if (self._folder / SLOW).exists():
            await asyncio.sleep(60)
        return await super().call(episode, arguments, deadline=deadline)

    async def end_episode(self, episode: Episode) -> None:
        (self._folder / f"{episode.episode_id}.ended").touch()
