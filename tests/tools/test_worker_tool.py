"""Calls that workers of an extra role answer: what the policy gets wrong in them is its own to read."""

import asyncio
from typing import Any

import pytest
import ray

from agentrl.cluster.handles import WorkerHandle
from agentrl.tools.base import Episode
from agentrl.tools.worker_tool import WorkerTool
from agentrl.types import Deadline, ToolResult, ToolStatus


class Painter:
    async def draw(self, *, episode_id: str, size: int) -> str:
        return f"{size} for {episode_id}"


async def call(worker: object, arguments: dict[str, object]) -> ToolResult:
    tool = WorkerTool({"role": "painter", "method": "draw", "workers": (worker,)}, None)
    return await tool.call(Episode(episode_id="e", prompt_id="p"), arguments, deadline=Deadline.after(60))


def test_a_worker_answers():
    result = asyncio.run(call(Painter(), {"size": 3}))
    assert (result.status, result.text) == (ToolStatus.OK, "3 for e")


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("arguments", [{"size": 3, "colour": "red"}, {}])
def test_arguments_that_the_method_does_not_have_are_a_failed_call_that_the_policy_reads(
    arguments: dict[str, object],
):
    painter: Any = ray.remote(Painter).remote()
    result = asyncio.run(call(WorkerHandle(painter, "painter 0"), arguments))
    assert result.status is ToolStatus.INVALID_ARGUMENTS
    assert result.text.startswith("failure: invalid arguments: ")
