"""The tool against a real judge with sessions."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import JudgeUnavailableError, ToolError
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.judge.local import LocalJudge
from agentrl.tools.base import Episode
from agentrl.tools.jupyter_tool import JupyterTool
from agentrl.types import Deadline, ToolResult, ToolStatus


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with LocalJudge(
        JudgeSection(min_isolation="B", max_wall_time_s=4.0, max_memory_mb=300), max_sessions=16
    ) as running:
        yield running


@pytest.fixture
async def tool(judge: LocalJudge) -> AsyncIterator[JupyterTool]:
    built = make(judge)
    await built.start()
    yield built
    await built.aclose()


def make(judge: LocalJudge) -> JupyterTool:
    return JupyterTool({}, None, ToolContext(judge=JudgeAddress(urls=(judge.url,))))


def episode(name: str) -> Episode:
    return Episode(episode_id=name, prompt_id="p")


async def run(tool: JupyterTool, name: str, code: str) -> ToolResult:
    return await tool.call(episode(name), {"code": code}, deadline=Deadline.after(100))


async def url_of(tool: JupyterTool, judge: LocalJudge, name: str) -> str:
    return f"{judge.url}/v1/sessions/{(await tool._sessions[name]).session_id}"


def isolation(judge: LocalJudge) -> str:
    return httpx.get(f"{judge.url}/v1/health").json()["isolation"]


def delete(url: str) -> None:
    assert httpx.delete(url).is_success


def is_open(url: str) -> bool:
    return httpx.get(url).status_code == 200


async def test_variables_live_from_call_to_call(tool: JupyterTool) -> None:
    assert (await run(tool, "a", "x = 6 * 7")).text == "success"
    result = await run(tool, "a", "print('x is')\nx")
    assert result.status is ToolStatus.OK
    assert result.text == "success\nstdout:\nx is\nresult:\n42"


async def test_a_cell_that_fails_leaves_the_variables_as_they_were(tool: JupyterTool) -> None:
    await run(tool, "b", "items = [1]")
    failed = await run(tool, "b", "items.append(2)\n1 / 0")
    assert failed.status is ToolStatus.ERROR
    assert failed.text.startswith("failure: ZeroDivisionError: division by zero\ntraceback:\nTraceback (most recent")
    assert (await run(tool, "b", "items")).text == "success\nresult:\n[1]"


async def test_trajectories_do_not_see_each_others_variables(tool: JupyterTool) -> None:
    await run(tool, "c", "secret = 1")
    assert (await run(tool, "d", "secret")).text.startswith("failure: NameError")


async def test_calls_of_one_turn_share_a_session_and_run_in_their_order(tool: JupyterTool) -> None:
    cells = ["import time; time.sleep(0.3); y = 1", "y += 1", "y"]
    results = await asyncio.gather(*(run(tool, "e", cell) for cell in cells))
    assert results[2].text == "success\nresult:\n2"


async def test_the_end_of_an_episode_closes_its_session(judge: LocalJudge) -> None:
    tool = make(judge)
    await tool.start()
    await run(tool, "f", "1")
    await run(tool, "g", "1")
    first, second = await url_of(tool, judge, "f"), await url_of(tool, judge, "g")
    await tool.end_episode(episode("f"))
    assert [is_open(first), is_open(second)] == [False, True]
    await tool.end_episode(episode("unknown"))
    await tool.aclose()
    assert not is_open(second)


async def test_an_episode_that_is_cancelled_while_its_session_opens_leaves_none(judge: LocalJudge) -> None:
    tool = make(judge)
    await tool.start()
    for _ in range(5):
        call = asyncio.create_task(run(tool, "j", "1"))
        await asyncio.sleep(0.002)
        opening = tool._sessions["j"]
        call.cancel()
        await tool.end_episode(episode("j"))
        if not opening.cancelled():
            assert not is_open(f"{judge.url}/v1/sessions/{opening.result().session_id}")
    await tool.aclose()


async def test_a_cell_that_takes_too_long_leaves_the_variables_as_they_were(tool: JupyterTool) -> None:
    await run(tool, "h", "x = 1")
    result = await run(tool, "h", "x = 2\nwhile True: pass")
    assert (result.status, result.text) == (ToolStatus.TIMEOUT, "failure: time limit exceeded")
    assert (await run(tool, "h", "x")).text == "success\nresult:\n1"


KILL = """
import contextlib, os, signal, time
for pid in {pids}:
    with contextlib.suppress(OSError):
        if pid != os.getpid():
            os.kill(pid, signal.SIGKILL)
time.sleep(1)
"""


async def test_cells_after_one_that_kills_the_notebook_in_the_same_turn_are_the_policys_fault(
    tool: JupyterTool,
) -> None:
    kill = KILL.format(pids="[int(pid) for pid in os.listdir('/proc') if pid.isdigit()]")
    results = await asyncio.gather(*(run(tool, "l", cell) for cell in (kill, "1", "2")))
    assert [result.status for result in results] == [ToolStatus.ERROR] * 3
    assert results[1].text == "failure: a cell killed the notebook\nThe notebook was restarted: its variables are lost."
    assert (await run(tool, "l", "1")).text == "success\nresult:\n1"


async def test_a_cell_that_kills_its_notebook_is_the_policys_fault_and_the_next_starts_afresh(
    tool: JupyterTool,
) -> None:
    await run(tool, "k", "x = 1")
    result = await run(tool, "k", KILL.format(pids="[int(pid) for pid in os.listdir('/proc') if pid.isdigit()]"))
    assert result.status is ToolStatus.ERROR
    assert result.text == "failure: a cell killed the notebook\nThe notebook was restarted: its variables are lost."
    assert (await run(tool, "k", "x")).text.startswith("failure: NameError")


async def test_a_cell_that_kills_the_state_before_it_never_blames_the_infrastructure(tool: JupyterTool) -> None:
    for _ in range(3):
        await run(tool, "l", "x = 1")
        await run(tool, "l", KILL.format(pids="[os.getppid()]"))


async def test_a_session_that_is_gone_blames_the_infrastructure(tool: JupyterTool, judge: LocalJudge) -> None:
    await run(tool, "i", "x = 1")
    delete(await url_of(tool, judge, "i"))
    with pytest.raises(JudgeUnavailableError, match="no result of a cell"):
        await run(tool, "i", "x")


async def test_a_judge_without_sessions_is_refused_at_the_start() -> None:
    with LocalJudge(JudgeSection(min_isolation="D"), max_sessions=1) as judge:
        tool = make(judge)
        if isolation(judge) in "AB":
            await tool.start()
            await tool.aclose()
            return
        with pytest.raises(ToolError, match="sessions need isolation tier A or B"):
            await tool.start()
