"""Tools written the way verl's documentation shows, loaded unchanged; verl itself is not installed."""

import asyncio
import math
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.errors import ToolError, UnexplainedError
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.types import Deadline, ToolCall, ToolStatus

SCHEMA = {
    "type": "function",
    "function": {
        "name": "guess",
        "description": "Guess the number.",
        "parameters": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
    },
}
EXTRA = {"tools_kwargs": {"guess": {"create_kwargs": {"ground_truth": "7", "unused": None}}}}


class VerlTool:
    """Newer verl: `create` gives `(id, response)`, `execute` a response object."""

    instances: "list[VerlTool]" = []  # noqa: RUF012 - how the test finds the instance that the builder made

    def __init__(self, config: dict[str, Any], tool_schema: Any) -> None:
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        self.name = self.tool_schema.function.name
        self.state: dict[str, Any] = {}
        self.released: list[str] = []
        VerlTool.instances.append(self)

    def get_openai_tool_schema(self) -> Any:
        return self.tool_schema

    async def create(self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any) -> Any:
        await asyncio.sleep(0.01)
        assert instance_id not in self.state, "created twice"
        assert kwargs in ({}, {"create_kwargs": {"ground_truth": ground_truth}})
        self.state[str(instance_id)] = {"truth": ground_truth, "calls": 0}
        return instance_id, SimpleNamespace(text=None)

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        state = self.state[instance_id]
        state["calls"] += 1
        if parameters["answer"] == "crash":
            raise ValueError("bad guess")
        right = parameters["answer"] == state["truth"]
        return SimpleNamespace(text=f"right={right}", image=None), float(right), {}

    async def calc_reward(self, instance_id: str, **kwargs: Any) -> float:
        return 1.0

    async def release(self, instance_id: str, **kwargs: Any) -> None:
        del self.state[instance_id]
        self.released.append(instance_id)


class OldVerlTool(VerlTool):
    """Older verl: `create` gives the id alone, `execute` a plain string."""

    async def create(self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any) -> Any:
        created, _ = await super().create(instance_id, ground_truth, **kwargs)
        return created

    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        response, reward, metrics = await super().execute(instance_id, parameters, **kwargs)
        return response.text, reward, metrics


class NotANumber(VerlTool):
    async def execute(self, instance_id: str, parameters: dict[str, Any], **kwargs: Any) -> Any:
        response, _, metrics = await super().execute(instance_id, parameters, **kwargs)
        return response, math.nan, metrics


class NewestVerlTool(VerlTool):
    """Verl's agent loop: everything in one keyword."""

    async def create(self, instance_id: str | None = None, ground_truth: str | None = None, **kwargs: Any) -> Any:
        return await super().create(instance_id, kwargs["create_kwargs"]["ground_truth"])


class RequiresCreateKwargs(VerlTool):
    """Verl's agent loop passes `create_kwargs` also for a row that names none."""

    async def create(
        self,
        instance_id: str | None = None,
        ground_truth: str | None = None,
        *,
        create_kwargs: dict[str, Any],
        **kwargs: Any,
    ) -> Any:
        return await super().create(instance_id, create_kwargs.get("ground_truth", "7"))


MADE: list[ToolExecutor] = []


def build(name: str, schema: dict[str, Any] | None = SCHEMA) -> ToolExecutor:
    configs = [ToolConfig(class_name=f"{__name__}.{name}", config={"type": "native"}, tool_schema=schema)]
    MADE.append(ToolExecutor(build_tools(configs), timeout_s=5.0))
    return MADE[-1]


@pytest.fixture(autouse=True)
async def close_executors() -> AsyncIterator[None]:
    """Their threads would go on beside all later tests."""
    yield
    while MADE:
        await MADE.pop().aclose()


def guess(*answers: str) -> list[ToolCall]:
    return [ToolCall(call_id=str(i), name="guess", arguments={"answer": answer}) for i, answer in enumerate(answers)]


@pytest.mark.parametrize("extra", [EXTRA, {"extra_info": EXTRA | {"index": 0}}], ids=["own column", "extra_info"])
@pytest.mark.parametrize("name", ["VerlTool", "OldVerlTool", "NewestVerlTool"])
async def test_a_verl_tool_answers_with_one_instance_per_episode(name: str, extra: dict[str, Any]) -> None:
    tools = build(name)
    episode = Episode(episode_id="e1", prompt_id="p", extra=extra)
    results = await tools.execute(guess("6", "7"), episode, deadline=Deadline.after(5))
    assert [(result.status, result.text) for result in results] == [
        (ToolStatus.OK, "right=False"),
        (ToolStatus.OK, "right=True"),
    ]
    assert VerlTool.instances[-1].state == {"e1": {"truth": "7", "calls": 2}}


async def test_a_tool_that_names_create_kwargs_gets_them_empty_from_a_row_without() -> None:
    tools = build("RequiresCreateKwargs")
    [result] = await tools.execute(guess("7"), Episode(episode_id="e1", prompt_id="p"), deadline=Deadline.after(5))
    assert (result.status, result.text) == (ToolStatus.OK, "right=True")


async def test_step_rewards_and_the_reward_of_the_episode_are_handed_on() -> None:
    tools, episode = build("VerlTool"), Episode(episode_id="e1", prompt_id="p", extra=EXTRA)
    results = await tools.execute(guess("6", "7"), episode, deadline=Deadline.after(5))
    assert [result.reward for result in results] == [0.0, 1.0]
    assert await tools.final_rewards(episode) == {"guess": 1.0}
    assert await tools.final_rewards(Episode(episode_id="never called", prompt_id="p")) == {}


async def test_a_reward_of_a_tool_that_is_no_number_is_refused() -> None:
    tools, episode = build("NotANumber"), Episode(episode_id="e1", prompt_id="p", extra=EXTRA)
    with pytest.raises(UnexplainedError, match="tool `guess`: its reward is nan, and must be a finite number"):
        await tools.execute(guess("7"), episode, deadline=Deadline.after(5))


async def test_the_end_of_the_episode_releases_its_instance() -> None:
    tools = build("VerlTool")
    for name in ("e1", "e2"):
        await tools.execute(guess("6"), Episode(episode_id=name, prompt_id="p"), deadline=Deadline.after(5))
    await tools.end_episode(Episode(episode_id="e1", prompt_id="p"))
    await tools.end_episode(Episode(episode_id="never called", prompt_id="p"))
    assert VerlTool.instances[-1].released == ["e1"]
    assert list(VerlTool.instances[-1].state) == ["e2"]


async def test_an_exception_from_execute_is_a_failed_call_as_in_verl() -> None:
    episode = Episode(episode_id="e", prompt_id="p")
    (result,) = await build("VerlTool").execute(guess("crash"), episode, deadline=Deadline.after(5))
    assert result.status is ToolStatus.ERROR
    assert result.text == "failure: ValueError: bad guess"


def test_a_verl_tool_without_a_schema_is_refused() -> None:
    with pytest.raises(ToolError, match="cannot be built"):
        build("VerlTool", None)
