"""A tool that only takes time, for simulations; the `seed` argument of a call decides its duration."""

import asyncio
import contextlib
import math
import random
from typing import Any

from pydantic import Field

from agentrl import clock
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.tools.base import Episode, ToolSchema
from agentrl.types import Deadline, ToolResult, ToolStatus

SIMULATED_TOOL = "agentrl.simulation.tool.SimulatedTool"

SIMULATED_TOOL_SCHEMA = ToolSchema(
    name="simulated_tool",
    description="Wait for a while.",
    parameters={"type": "object", "properties": {"seed": {"type": "integer"}}, "required": ["seed"]},
)


class SimulatedToolConfig(PlainConfig):
    """The keys of the tool; times are log-normal."""

    time_median_s: float = Field(default=0.3, gt=0)
    """Median of the time that a call takes."""
    time_sigma: float = Field(default=1.0, ge=0)
    """Standard deviation of the logarithm of the time."""
    min_time_s: float = Field(default=0.05, ge=0)
    """A shorter call takes this."""
    max_time_s: float = Field(default=5.0, ge=0)
    """A longer call takes this."""
    num_slots: int = Field(default=0, ge=0)
    """Concurrent calls per worker, others wait; 0: no limit."""
    result_chars: int = Field(default=200, ge=0)
    """Length of a result."""


class SimulatedTool:
    """See `Tool`."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        self._settings = read_plain_config(SimulatedToolConfig, config, source=f"tool `{SIMULATED_TOOL}`")
        self.schema = schema or SIMULATED_TOOL_SCHEMA
        self._slots = asyncio.Semaphore(self._settings.num_slots) if self._settings.num_slots else None

    async def start(self) -> None:
        """See `Tool.start`."""

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """See `Tool.call`."""
        settings = self._settings
        time_s = random.Random(arguments["seed"]).lognormvariate(math.log(settings.time_median_s), settings.time_sigma)
        time_s = min(max(time_s, settings.min_time_s), settings.max_time_s)
        arrived_at = clock.now()
        try:
            async with asyncio.timeout(deadline.remaining_s()), self._slots or contextlib.nullcontext():
                queue_s = clock.now() - arrived_at
                await asyncio.sleep(time_s)
        except TimeoutError:
            return ToolResult(status=ToolStatus.TIMEOUT, text="failure: time limit exceeded")
        return ToolResult(status=ToolStatus.OK, text="0" * settings.result_chars, queue_s=queue_s)

    async def end_episode(self, episode: Episode) -> None:
        """See `Tool.end_episode`."""

    async def aclose(self) -> None:
        """See `Tool.aclose`."""
