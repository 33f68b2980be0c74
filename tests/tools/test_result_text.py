"""Return values of user code in a tool: a result, or an error with the reason."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from agentrl.errors import ToolError
from agentrl.tools.base import Episode, ToolConfig, ToolSchema
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.result_text import NoResultError, result_text
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")


class Page:
    """A class without a text of its own."""


def forgot_to_return():
    """Look something up."""


def finds_nothing() -> str | None:
    """Look something up."""
    return None


def only_acts() -> None:
    """Save something."""


async def _answer_later() -> str:
    return "later"


def hides_that_it_is_async() -> Any:
    """Answer."""
    return _answer_later()


class OddTool:
    """Returns what its config says."""

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        self.returned = config["returned"]
        self.schema = ToolSchema(name="odd", description="", parameters={"type": "object"})

    async def start(self) -> None: ...
    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> Any:
        return self.returned

    async def end_episode(self, episode: Episode) -> None: ...
    async def aclose(self) -> None: ...


class OddVerlTool:
    """Returns what its config says, as verl's tools do."""

    def __init__(self, config: dict[str, Any], schema: Any) -> None:
        self.returned = config["returned"]

    async def create(self, instance_id: str) -> str:
        return instance_id

    async def execute(self, instance_id: str, parameters: dict[str, Any]) -> Any:
        return self.returned

    async def release(self, instance_id: str) -> None: ...


async def answer(
    class_name: str, name: str, config: dict[str, Any], schema: dict[str, Any] | None = None
) -> ToolResult:
    tool = ToolConfig(class_name=class_name, config=config, tool_schema=schema)
    tools = ToolExecutor(build_tools([tool]), timeout_s=10)
    await tools.start()
    try:
        call = ToolCall(call_id="c", name=name, arguments={})
        (result,) = await tools.execute([call], EPISODE, deadline=Deadline.after(10))
        return result
    finally:
        await tools.end_episode(EPISODE)
        await tools.aclose()


@pytest.mark.parametrize(
    ("returned", "text"),
    [("", ""), ({"a": None}, '{"a":null}'), (Decimal("1.5"), '"1.5"'), (np.float32(0.5), '"0.5"'), ({3}, "[3]")],
)
def test_values_are_text_or_json(returned: Any, text: str):
    assert result_text(returned) == text


@pytest.mark.parametrize("returned", [None, Page(), [Page()], b"\xff", ["\ud800"], forgot_to_return])
def test_what_says_nothing_is_no_result(returned: Any):
    with pytest.raises(NoResultError, match=r"the tool returned .*, which is no result") as caught:
        result_text(returned)
    assert " at 0x" not in str(caught.value)


async def test_a_function_that_returns_nothing_is_a_failed_call_unless_its_hint_says_so():
    failed = await answer(FUNCTION_TOOL, "forgot_to_return", {"function": f"{__name__}.forgot_to_return"})
    assert (failed.status, failed.text) == (ToolStatus.NO_RESULT, "failure: the tool returned None, which is no result")
    for name in ("finds_nothing", "only_acts"):
        result = await answer(FUNCTION_TOOL, name, {"function": f"{__name__}.{name}"})
        assert (result.status, result.text) == (ToolStatus.OK, "null")


async def test_a_function_that_hides_that_it_is_async_is_awaited():
    result = await answer(FUNCTION_TOOL, "hides_that_it_is_async", {"function": f"{__name__}.hides_that_it_is_async"})
    assert (result.status, result.text) == (ToolStatus.OK, "later")


@pytest.mark.parametrize(
    ("returned", "status", "text"),
    [
        (("fine", 0.5, {}), ToolStatus.OK, "fine"),
        (({"text": "fine"}, 0.5, {}), ToolStatus.OK, "fine"),
        (({"found": 3}, 0.5, {}), ToolStatus.OK, '{"found":3}'),
        ((None, 0.5, {}), ToolStatus.NO_RESULT, "failure: the tool returned None, which is no result"),
        (({"text": None}, 0.5, {}), ToolStatus.NO_RESULT, "failure: the tool returned None, which is no result"),
        ((Page(), 0.5, {}), ToolStatus.NO_RESULT, "failure: the tool returned a `Page`, which is no result: "),
    ],
)
async def test_an_empty_response_of_a_verl_tool_is_a_failed_call(returned: Any, status: ToolStatus, text: str):
    schema = {"type": "function", "function": {"name": "odd", "parameters": {"type": "object"}}}
    result = await answer(f"{__name__}.OddVerlTool", "odd", {"returned": returned}, schema)
    assert result.status is status
    assert result.text.startswith(text)
    assert result.reward == 0.5


@pytest.mark.parametrize(
    "returned",
    [None, ToolResult(status=ToolStatus.OK, text=None), ToolResult(status="ok", text="fine")],  # pyright: ignore
)
async def test_a_class_whose_result_has_no_text_or_no_status_breaks_its_contract(returned: Any):
    with pytest.raises(ToolError, match="tool `odd`: `call` returned a `"):
        await answer(f"{__name__}.OddTool", "odd", {"returned": returned})
