"""Calls that workers of an extra role answer: what the policy gets wrong in them is its own to read."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import ray

from agentrl.cluster.handles import WorkerHandle
from agentrl.errors import ToolError
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.worker_tool import WorkerTool
from agentrl.types import Deadline, ToolResult, ToolStatus


class Painter:
    async def draw(self, *, episode_id: str, size: int) -> str:
        return f"{size} for {episode_id}"


async def call(worker: object, arguments: dict[str, object], *, names: str = "size") -> ToolResult:
    parameters = {"type": "object", "properties": {names: {"type": "integer"}}}
    schema = ToolSchema(name="draw", description="", parameters=parameters)
    tool = WorkerTool({"role": "painter", "method": "draw", "workers": (worker,)}, schema)
    return await tool.call(Episode(episode_id="e", prompt_id="p"), arguments, deadline=Deadline.after(60))


def test_a_worker_answers():
    result = asyncio.run(call(Painter(), {"size": 3}))
    assert (result.status, result.text) == (ToolStatus.OK, "3 for e")


@pytest.fixture(scope="module")
def painter(local_ray: Path) -> WorkerHandle:
    actor: Any = ray.remote(Painter).remote()
    return WorkerHandle(actor, "painter 0")


@pytest.mark.ray
def test_arguments_that_neither_schema_nor_method_have_are_a_failed_call_that_the_policy_reads(painter: WorkerHandle):
    result = asyncio.run(call(painter, {"size": 3, "colour": "red"}))
    assert result.status is ToolStatus.INVALID_ARGUMENTS
    assert result.text.startswith("failure: invalid arguments: ")


@pytest.mark.ray
@pytest.mark.parametrize("arguments", [{"colour": "red"}, {}])
def test_a_call_that_follows_a_schema_which_does_not_fit_the_method_is_not_the_policys_fault(
    painter: WorkerHandle, arguments: dict[str, object]
):
    with pytest.raises(ToolError, match=r"`draw`, does not take what `tool_schema` names: .*Change one"):
        asyncio.run(call(painter, arguments, names="colour"))
