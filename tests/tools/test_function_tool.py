import asyncio
import datetime
import sys
import threading
from dataclasses import replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from agentrl.errors import ConfigError, RolloutError
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.function_tool import FUNCTION_TOOL, infer_schema
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")


def look_up(word: str, limit: int = 3, order: Literal["up", "down"] = "up") -> list[str]:
    """Find entries of the dictionary.

    Only whole words are found.

    Args:
        word: What to look
            for.
        limit: How many entries at most.
    """
    return [word] * limit


async def wait_and_greet(name: str) -> str:
    """Greet."""
    await asyncio.sleep(0.01)
    return f"hello {name}"


def thread_name() -> str:
    """Tell the thread."""
    return threading.current_thread().name


def divide(a: float, b: float) -> float:
    """Divide."""
    return a / b


def first_above(numbers: list[int], limit: int) -> int:
    """Find a number."""
    return next(number for number in numbers if number > limit)


def give_up(code: int) -> None:
    """Exit."""
    sys.exit(code)


def on_day(day: datetime.date) -> str:
    """Tell the weekday."""
    return day.strftime("%A")


def unreachable(kind: str) -> str:
    """Fail as the network does."""
    raise ConnectionError(kind)


def hinted_for_checkers(path: "PathLike") -> str:  # pyright: ignore # noqa: F821 - the fault under test
    return str(path)


def oddly_documented(a: int) -> str:
    """
    Args:
        a: a number.
    """
    return str(a)


def unhinted(a) -> str:
    """Have no hint."""
    return str(a)


def greedy(*words: str) -> str:
    """Take words by position."""
    return " ".join(words)


async def call(function: str, **arguments: Any) -> ToolResult:
    tools = build_tools([ToolConfig(class_name=FUNCTION_TOOL, config={"function": f"{__name__}.{function}"})])
    call = ToolCall(call_id="c", name=function, arguments=arguments)
    executor = ToolExecutor(tools, timeout_s=5.0)
    try:
        (result,) = await executor.execute([call], EPISODE, deadline=Deadline.after(5))
    finally:
        await executor.aclose()
    return replace(result, wall_time_s=0.0)


def test_the_schema_comes_from_hints_and_docstring() -> None:
    schema = infer_schema(look_up)
    assert schema.name == "look_up"
    assert schema.description == "Find entries of the dictionary.\n\nOnly whole words are found."
    assert schema.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "word": {"type": "string", "description": "What to look for."},
            "limit": {"type": "integer", "default": 3, "description": "How many entries at most."},
            "order": {"type": "string", "default": "up", "enum": ["up", "down"]},
        },
        "required": ["word"],
    }


def test_a_description_in_the_hint_wins_over_the_docstring() -> None:
    def shout(word: Annotated[str, Field(description="from the hint")]) -> str:
        """Shout.

        Args:
            word: from the docstring
        """
        return word.upper()

    assert infer_schema(shout).parameters["properties"]["word"]["description"] == "from the hint"


async def test_what_a_function_returns_is_text_or_json() -> None:
    assert (await call("wait_and_greet", name="you")).text == "hello you"
    assert (await call("look_up", word="a", limit=2)).text == '["a","a"]'


async def test_a_sync_function_runs_off_the_event_loop() -> None:
    assert (await call("thread_name")).text != threading.main_thread().name


async def test_arguments_are_converted_by_the_hints_or_refused() -> None:
    assert (await call("divide", a=1, b=2)).text == "0.5"
    refused = await call("divide", a="one", b=2)
    assert refused.status is ToolStatus.INVALID_ARGUMENTS
    assert refused.text == "failure: invalid arguments: `a`: 'one' is not of type 'number'"


async def test_what_the_schema_cannot_say_is_refused_by_the_hints() -> None:
    refused = await call("on_day", day="2026-02-30")
    assert refused.status is ToolStatus.INVALID_ARGUMENTS
    assert refused.text.startswith("failure: invalid arguments: `day`: ")


async def test_an_exception_of_a_function_is_a_failed_call_that_names_it() -> None:
    result = await call("divide", a=1, b=0)
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("failure: ZeroDivisionError: ")


async def test_what_no_event_loop_can_take_is_a_failed_call_at_once_too() -> None:
    result = await call("first_above", numbers=[1, 2], limit=3)
    assert (result.status, result.text) == (ToolStatus.ERROR, "failure: StopIteration: ")
    result = await call("give_up", code=3)
    assert (result.status, result.text) == (ToolStatus.ERROR, "failure: SystemExit: 3")


async def test_a_lost_connection_is_not_the_policys_fault() -> None:
    with pytest.raises(RolloutError, match="tool `unreachable`: ConnectionError: refused"):
        await call("unreachable", kind="refused")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (unhinted, "`a` has no type hint"),
        (greedy, "`words` cannot be given by name"),
        (
            hinted_for_checkers,
            "its type hints have no JSON form, or .*: NameError .*: name 'PathLike'",
        ),
        (oddly_documented, "its docstring is not in Google style: ParseError"),
    ],
)
def test_a_signature_that_cannot_be_described_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        infer_schema(function)
