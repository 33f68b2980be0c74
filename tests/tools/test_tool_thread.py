"""User code that blocks: it stops its own callers at most."""

import asyncio
import time
from typing import Any

import pytest

from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")


async def block_in_async(seconds: float) -> str:
    """Block, as an `async def` must not."""
    time.sleep(seconds)  # noqa: ASYNC251 - the test's subject
    return "blocked"


def block_in_def(seconds: float) -> str:
    """Block."""
    time.sleep(seconds)
    return "blocked"


async def leave(code: int) -> str:
    """Leave, if the code is not 0."""
    if code:
        raise SystemExit(code)
    return "stayed"


_lock: list[asyncio.Lock] = []


async def take_lock() -> str:
    """Use a lock that belongs to one event loop."""
    if not _lock:
        _lock.append(asyncio.Lock())
    async with _lock[0]:
        await asyncio.sleep(0.02)
    return "taken"


def executor(*functions: str) -> ToolExecutor:
    configs = [ToolConfig(class_name=FUNCTION_TOOL, config={"function": f"{__name__}.{name}"}) for name in functions]
    return ToolExecutor(build_tools(configs), timeout_s=30)


async def answer(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    call = ToolCall(call_id="c", name=name, arguments=arguments)
    (result,) = await tools.execute([call], EPISODE, deadline=Deadline.after(30))
    return result


async def most_blocked(call: "asyncio.Task[ToolResult]") -> float:
    """Return for how long the loop did nothing else until `call` was done, at most."""
    longest = 0.0
    while not call.done():
        before = time.monotonic()
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - before)
    return longest


@pytest.mark.parametrize("name", ["block_in_async", "block_in_def"])
async def test_a_tool_that_blocks_does_not_block_the_loop_of_the_trajectories(name: str):
    tools = executor(name)
    call = asyncio.create_task(answer(tools, name, seconds=1.0))
    assert await most_blocked(call) < 0.5
    assert call.result().text == "blocked"
    await tools.aclose()


async def test_a_tool_that_blocks_does_not_block_another_tool():
    tools = executor("block_in_async", "take_lock")
    blocking = asyncio.create_task(answer(tools, "block_in_async", seconds=1.0))
    await answer(tools, "take_lock")
    assert not blocking.done()
    await blocking
    await tools.aclose()


async def test_calls_of_a_sync_function_run_at_once_however_few_processors_there_are():
    tools = executor("block_in_def")
    started = time.monotonic()
    results = await asyncio.gather(*(answer(tools, "block_in_def", seconds=0.5) for _ in range(64)))
    assert time.monotonic() - started < 64 * 0.5 / 4
    assert {result.text for result in results} == {"blocked"}
    await tools.aclose()


async def test_calls_of_one_async_tool_share_a_loop_and_what_is_bound_to_it():
    tools = executor("take_lock")
    results = await asyncio.gather(*(answer(tools, "take_lock") for _ in range(4)))
    assert {result.status for result in results} == {ToolStatus.OK}
    await tools.aclose()


async def test_a_tool_that_leaves_the_interpreter_fails_its_call_and_answers_the_next():
    tools = executor("leave")
    assert (await answer(tools, "leave", code=3)).text == "failure: SystemExit: 3"
    assert (await answer(tools, "leave", code=0)).text == "stayed"
    await tools.aclose()
