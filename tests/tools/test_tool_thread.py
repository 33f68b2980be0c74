"""User code that blocks: it stops its own callers at most."""

import asyncio
import threading
from typing import Any

import pytest

from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.tool_thread import ToolThread
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus

EPISODE = Episode(episode_id="e", prompt_id="p")


_begun, _release = threading.Event(), threading.Event()
_sixteen = threading.Barrier(16)


def block_in_def() -> str:
    """Block until somebody else releases it."""
    _begun.set()
    return "released" if _release.wait(60) else "held up whoever should have"


async def block_in_async() -> str:
    """Block, as an `async def` must not."""
    return block_in_def()


def meet_fifteen_others() -> str:
    """Block until sixteen calls do."""
    _sixteen.wait(60)
    return "met"


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
    return ToolExecutor(build_tools(configs), timeout_s=100)


async def answer(tools: ToolExecutor, name: str, **arguments: Any) -> ToolResult:
    call = ToolCall(call_id="c", name=name, arguments=arguments)
    (result,) = await tools.execute([call], EPISODE, deadline=Deadline.after(100))
    return result


@pytest.fixture(autouse=True)
def nobody_blocks_yet() -> None:
    _begun.clear()
    _release.clear()


async def until_it_blocks() -> None:
    """Have the loop go on until a tool is about to block."""
    while not _begun.is_set():  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("name", ["block_in_async", "block_in_def"])
async def test_a_tool_that_blocks_does_not_block_the_loop_of_the_trajectories(name: str):
    tools = executor(name)
    call = asyncio.create_task(answer(tools, name))
    await until_it_blocks()
    await asyncio.sleep(0.01)
    assert not call.done()
    _release.set()
    assert (await call).text == "released"
    await tools.aclose()


async def test_a_tool_that_blocks_does_not_block_another_tool():
    tools = executor("block_in_async", "take_lock")
    blocking = asyncio.create_task(answer(tools, "block_in_async"))
    await until_it_blocks()
    assert (await answer(tools, "take_lock")).text == "taken"
    assert not blocking.done()
    _release.set()
    assert (await blocking).text == "released"
    await tools.aclose()


async def test_calls_of_a_sync_function_run_at_once_however_few_processors_there_are():
    tools = executor("meet_fifteen_others")
    results = await asyncio.gather(*(answer(tools, "meet_fifteen_others") for _ in range(64)))
    assert {result.text for result in results} == {"met"}
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


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
async def test_a_thread_that_is_closed_while_user_code_leaves_its_loop_ends(ending: type[BaseException]):
    thread = ToolThread("closed while it leaves")
    held: list[asyncio.Task[None]] = []

    async def leave_beside() -> None:
        thread.close()
        raise ending

    async def begin() -> None:
        held.append(asyncio.create_task(leave_beside()))
        held.append(asyncio.create_task(asyncio.sleep(60)))

    async with asyncio.timeout(20):
        await thread.run(begin())
        for other in threading.enumerate():
            if "closed while it leaves" in other.name:
                await asyncio.to_thread(other.join)
    assert isinstance(held[0].exception(), ending)
    assert held[1].cancelled()


async def test_a_thread_that_is_closed_while_it_is_blocked_and_then_used_leaves_no_thread():
    thread, begun, release = ToolThread("blocked and then used"), threading.Event(), threading.Event()

    async def block() -> None:
        begun.set()
        release.wait(60)

    blocked = thread.run(block())
    await asyncio.to_thread(begun.wait, 20)
    thread.close()
    await thread.run(asyncio.sleep(0))  # on a new loop
    threads = [other for other in threading.enumerate() if "blocked and then used" in other.name]
    assert len(threads) == 2
    release.set()
    await blocked
    thread.close()
    for other in threads:
        await asyncio.to_thread(other.join, 20)
    assert not any(other.is_alive() for other in threads)
