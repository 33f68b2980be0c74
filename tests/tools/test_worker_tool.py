"""Calls that workers of an extra role answer: what the policy gets wrong in them is its own to read."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool
from agentrl.cluster.workers.extra_roles import spawn_extra_worker
from agentrl.errors import RolloutError, ToolError, WorkerDiedError
from agentrl.judge.connection import ToolContext
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.worker_tool import WorkerTool
from agentrl.types import Deadline, ToolResult, ToolStatus
from tests.cluster.workers import Painter

pytestmark = pytest.mark.ray


EPISODE = Episode(episode_id="e", prompt_id="p")


def make_tool(worker: WorkerHandle, *, names: str = "size", method: str = "draw") -> WorkerTool:
    parameters = {"type": "object", "properties": {names: {}}}
    schema = ToolSchema(name="draw", description="", parameters=parameters)
    config = {"role": "painter", "method": method, "end_method": "forget"}
    return WorkerTool(config, schema, ToolContext(workers={"painter": (worker,)}))


async def call(worker: WorkerHandle, arguments: dict[str, object], *, names: str = "size", **how: str) -> ToolResult:
    tool = make_tool(worker, names=names, **how)
    try:
        return await tool.call(EPISODE, arguments, deadline=Deadline.after(60))
    finally:
        await tool.end_episode(EPISODE)


@pytest.fixture(scope="module")
def painter(local_ray: Path) -> WorkerHandle:
    pool = ResourcePool(num_processes=1, num_cpus=0.1)
    return spawn_extra_worker(Painter, pool, {}, "painter", max_concurrency=8)


def test_a_worker_answers(painter: WorkerHandle):
    result = asyncio.run(call(painter, {"size": 3}))
    assert (result.status, result.text) == (ToolStatus.OK, "[3] for e")


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("in two lines", "ValueError: first second"),
        ("in a group", "ValueError: first second"),
        ("beyond pickling", "StatusError: status 503: busy"),
        ("by Ctrl-C", "KeyboardInterrupt"),
        ("by sys.exit", "SystemExit: 2"),
        ("by sys.exit in a group", "SystemExit: 2; ValueError: bad"),
        ("by its own cancellation", "CancelledError"),
        ("without words", "MuteError: its text cannot be shown: ZeroDivisionError"),
        ("as agentrl does", "ConfigError: no such colour"),
        ("there is no \ud800", "ValueError: there is no ?"),
    ],
)
def test_what_a_method_raises_is_reported_in_one_line_whatever_it_is_and_the_worker_goes_on(
    painter: WorkerHandle, how: str, text: str
):
    result = asyncio.run(call(painter, {"how": how}, names="how", method="fail"))
    assert (result.status, result.text) == (ToolStatus.ERROR, f"failure: {text}")
    assert asyncio.run(call(painter, {"size": 3})).status is ToolStatus.OK


def test_what_a_method_returns_needs_not_be_known_elsewhere_but_must_be_text_or_json(painter: WorkerHandle):
    result = asyncio.run(call(painter, {"how": "with a value of its own"}, names="how", method="fail"))
    assert (result.status, result.text) == (ToolStatus.OK, '"status 200: odd"')
    result = asyncio.run(call(painter, {"how": "with bytes"}, names="how", method="fail"))
    assert (result.status, "a `bytes`, which is no result" in result.text) == (ToolStatus.ERROR, True)


def test_what_a_method_raises_as_the_worlds_fault_is_that_and_no_engines_death(painter: WorkerHandle):
    with pytest.raises(RolloutError, match=r"`Painter.fail`: the lamp is out \?$") as raised:
        asyncio.run(call(painter, {"how": "by the world"}, names="how", method="fail"))
    assert type(raised.value) is RolloutError
    assert asyncio.run(call(painter, {"size": 3})).status is ToolStatus.OK


def test_arguments_that_neither_schema_nor_method_have_are_a_failed_call_that_the_policy_reads(painter: WorkerHandle):
    result = asyncio.run(call(painter, {"size": 3, "colour": "red"}))
    assert result.status is ToolStatus.INVALID_ARGUMENTS
    assert result.text.startswith("failure: invalid arguments: ")


@pytest.mark.parametrize("arguments", [{"colour": "red"}, {}])
def test_a_call_that_follows_a_schema_which_does_not_fit_the_method_is_not_the_policys_fault(
    painter: WorkerHandle, arguments: dict[str, object]
):
    with pytest.raises(ToolError, match=r"`draw` does not take the arguments of `tool_schema`: .*Change one"):
        asyncio.run(call(painter, arguments, names="colour"))


async def until_back(worker: WorkerHandle) -> None:
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(WorkerDiedError):
                return await worker.until_placed()
            await asyncio.sleep(0.1)


async def test_an_episode_whose_worker_was_restarted_fails_as_infrastructure_and_others_continue(
    painter: WorkerHandle,
):
    tool, later = make_tool(painter), Episode(episode_id="later", prompt_id="p")
    await tool.call(EPISODE, {"size": 3}, deadline=Deadline.after(60))
    with pytest.raises(WorkerDiedError):
        await painter.die()
    await until_back(painter)
    with pytest.raises(RolloutError, match="`Painter`: its process died after it had answered this episode") as raised:
        await tool.call(EPISODE, {"size": 4}, deadline=Deadline.after(60))
    assert not isinstance(raised.value, WorkerDiedError), "which would be taken for an engine's"
    await tool.end_episode(EPISODE)
    result = await tool.call(later, {"size": 5}, deadline=Deadline.after(60))
    assert result.text == "[5] for later"


async def test_an_episode_that_another_tool_of_the_role_has_begun_is_lost_with_its_worker_too(painter: WorkerHandle):
    tool, other = make_tool(painter), make_tool(painter)
    episode = Episode(episode_id="of two tools", prompt_id="p")
    await tool.call(episode, {"size": 3}, deadline=Deadline.after(60))
    with pytest.raises(WorkerDiedError):
        await painter.die()
    await until_back(painter)
    with pytest.raises(RolloutError, match="its process died after it had answered this episode"):
        await other.call(episode, {"size": 4}, deadline=Deadline.after(60))
    for started in (tool, other):
        await started.end_episode(episode)


async def test_the_end_of_an_episode_is_told_to_the_process_that_answered_it_and_to_no_other(painter: WorkerHandle):
    tool, unasked = make_tool(painter), make_tool(painter)
    episode = Episode(episode_id="ends", prompt_id="p")
    await tool.call(episode, {"size": 3}, deadline=Deadline.after(60))
    await unasked.end_episode(Episode(episode_id="never asked", prompt_id="p"))
    result = await tool.call(episode, {"size": 4}, deadline=Deadline.after(60))
    assert result.text == "[3, 4] for ends", "nobody has told the worker to forget"
    await tool.end_episode(episode)
    result = await tool.call(Episode(episode_id="next", prompt_id="p"), {"size": 5}, deadline=Deadline.after(60))
    assert result.text == "[5] for next"
