"""Tools that fail at every call are named after the first batch."""

import asyncio
import json

import pytest

from agentrl.observability.reports.failure import warn_of_failures
from agentrl.observability.reports.tools import describe_failing_tools, tally_calls
from agentrl.tools.base import Episode
from agentrl.tools.function_tool import FunctionTool
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus, ToolTally, Turn
from tests.summaries import short_summary


def calculate(expression: str) -> float:
    """Calculate."""
    return json.loads(expression)["value"]


RAISES_AT = calculate.__code__.co_firstlineno + 2


def turn(*results: ToolResult, name: str = "calculate") -> Turn:
    return Turn(text="", calls=tuple(ToolCall(call_id="", name=name) for _ in results), results=results)


def failed(status: ToolStatus, text: str = "failure: no") -> ToolResult:
    return ToolResult(status=status, text=text)


def test_a_function_that_always_raises_is_named_with_its_line(caplog: pytest.LogCaptureFixture):
    tool = FunctionTool({"function": f"{__name__}.calculate"}, None)
    episode = Episode(episode_id="e", prompt_id="p")
    call = tool.call(episode, {"expression": "1 +"}, deadline=Deadline.after(5))
    tallies = tally_calls([turn(asyncio.run(call))])
    warn_of_failures("step 1 rollout", [short_summary(tools=tallies)] * 12)
    assert caplog.messages == [
        "step 1 rollout: tool `calculate`: 12 of 12 calls failed, most often with `error`, JSONDecodeError at "
        f"test_tool_report.py:{RAISES_AT}"
    ]


def test_a_tool_that_hangs_and_calls_that_no_tool_takes_are_named():
    slow = tally_calls([turn(failed(ToolStatus.TIMEOUT, "failure: no answer in 5 s"))])
    lost = tally_calls([turn(failed(ToolStatus.UNPARSABLE, "failure: not JSON"), name="")])
    assert describe_failing_tools([short_summary(tools=slow + lost)] * 4) == {
        "calculate": "tool `calculate`: 4 of 4 calls failed, most often with `timeout`, no answer in 5 s"
    }
    assert describe_failing_tools([short_summary(tools=lost)] * 4) == {
        "": "tools: 4 of 4 calls failed, most often with `unparsable`, not JSON"
    }


def test_a_tool_that_sometimes_succeeds_or_is_seldom_called_is_not_named():
    bad = turn(failed(ToolStatus.ERROR))
    good = turn(ToolResult(status=ToolStatus.OK, text="5"))
    summaries = [short_summary(tools=tally_calls([bad])) for _ in range(9)]
    assert describe_failing_tools(summaries[:3]) == {}
    assert describe_failing_tools(summaries)
    assert describe_failing_tools([*summaries, short_summary(tools=tally_calls([good]))]) == {}


def test_a_turn_whose_calls_were_not_answered_has_no_failures():
    assert tally_calls([Turn(text="", calls=(ToolCall(call_id="", name="calc"),))]) == ()
    assert tally_calls([turn(ToolResult(status=ToolStatus.OK, text=""))]) == (
        ToolTally(name="calculate", num_calls=1, num_failed=0, cause=""),
    )
