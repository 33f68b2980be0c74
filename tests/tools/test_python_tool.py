"""The tool against a real judge."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.config.schema.judge import JudgeSection
from agentrl.errors import JudgeUnavailableError, ToolError
from agentrl.judge.local import LocalJudge
from agentrl.tools.base import Episode
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.python_tool import PythonTool, result_text
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus
from code_judge_server.schemas import Verdict

EPISODE = Episode(episode_id="e", prompt_id="p")


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with LocalJudge(JudgeSection(min_isolation="D", max_wall_time_s=6.0, max_memory_mb=200)) as running:
        yield running


def make(judge: LocalJudge, **config: Any) -> PythonTool:
    return PythonTool({"host_addr": judge.host, "host_port": judge.port} | config, None)


@pytest.fixture
async def tool(judge: LocalJudge) -> AsyncIterator[PythonTool]:
    built = make(judge)
    await built.start()
    yield built
    await built.aclose()


async def run(tool: PythonTool, code: str, **arguments: str) -> ToolResult:
    return await tool.call(EPISODE, {"code": code, **arguments}, deadline=Deadline.after(100))


@pytest.mark.slow
async def test_a_program_that_works_reads_success_and_its_output(tool: PythonTool) -> None:
    result = await run(tool, "print(int(input()) * 2)", input="229")
    assert result.queue_s > 0
    assert replace(result, queue_s=0.0) == ToolResult(status=ToolStatus.OK, text="success\nstdout:\n458")


async def test_a_program_that_prints_nothing_reads_success_alone(tool: PythonTool) -> None:
    assert (await run(tool, "x = 1")).text == "success"


async def test_stderr_follows_stdout(tool: PythonTool) -> None:
    result = await run(tool, "import sys; print('a'); print('b', file=sys.stderr)")
    assert result.text == "success\nstdout:\na\nstderr:\nb"


async def test_a_program_that_fails_reads_its_exit_code_and_traceback(tool: PythonTool) -> None:
    result = await run(tool, "1/0")
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("failure: exit code 1\nstderr:\nTraceback (most recent call last):\n")
    assert result.text.endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("code", "status", "first_line"),
    [
        ("while True: pass", ToolStatus.TIMEOUT, "failure: time limit exceeded"),
        ("import time; time.sleep(60)", ToolStatus.TIMEOUT, "failure: time limit exceeded"),
        ("a = bytearray(10**9)\nfor i in range(0, 10**9, 4096): a[i] = 1", ToolStatus.ERROR, "failure: memory limit"),
        ("print('x' * 10**7)", ToolStatus.ERROR, "failure: output limit exceeded"),
        ("import os; os.kill(os.getpid(), 11)", ToolStatus.ERROR, "failure: killed by signal 11"),
        ("print(", ToolStatus.ERROR, "failure: exit code 1"),
        ("print('\0')", ToolStatus.INVALID_ARGUMENTS, "failure: `code` must not contain NUL characters"),
    ],
)
async def test_every_way_to_fail_is_named(tool: PythonTool, code: str, status: ToolStatus, first_line: str) -> None:
    result = await run(tool, code)
    assert result.status is status
    assert result.text.splitlines()[0].startswith(first_line)


async def test_calls_share_no_state(tool: PythonTool) -> None:
    await run(tool, "x = 1")
    assert (await run(tool, "print(x)")).status is ToolStatus.ERROR


async def test_many_calls_at_once_get_their_own_results(tool: PythonTool) -> None:
    executor = ToolExecutor({"python": tool}, timeout_s=100.0)
    calls = [ToolCall(call_id=str(i), name="python", arguments={"code": f"print({i})"}) for i in range(16)]
    results = await executor.execute(calls, EPISODE, deadline=Deadline.after(100.0))
    assert [result.text for result in results] == [f"success\nstdout:\n{i}" for i in range(16)]
    stats = tool.take_judge_stats()
    assert stats.num_submissions == 16
    assert stats.num_requests <= 16


@pytest.mark.slow
async def test_a_judge_that_goes_away_is_no_result() -> None:
    with LocalJudge(JudgeSection(min_isolation="D")) as judge:
        built = make(judge)
        await built.start()
    with pytest.raises(JudgeUnavailableError, match="no verdict in"):
        await built.call(EPISODE, {"code": "print(1)"}, deadline=Deadline.after(0.5))
    await built.aclose()


async def test_an_address_without_a_judge_stops_the_run_at_the_start() -> None:
    async with TestServer(web.Application()) as other_server:
        with pytest.raises(ToolError, match=r"tool `python_code_with_standard_io`: judge .* HTTP 404"):
            await PythonTool({"host_addr": "127.0.0.1", "host_port": other_server.port}, None).start()


def verdict(**fields: Any) -> Verdict:
    return Verdict.model_validate({"id": "", "isolation": "D", "memory_enforcement": "sampled"} | fields)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"status": "accepted", "stdout": "a\n"}, "success\nstdout:\na"),
        ({"status": "accepted", "stdout": "\n"}, "success"),
        ({"status": "runtime_error", "exit_code": 3}, "failure: exit code 3"),
        ({"status": "runtime_error", "signal": 6, "stderr": "x"}, "failure: killed by signal 6\nstderr:\nx"),
        ({"status": "memory_limit_exceeded", "signal": 9}, "failure: memory limit exceeded"),
        ({"status": "compile_error", "exit_code": 1, "stderr": "no"}, "failure: compile error\nstderr:\nno"),
    ],
)
def test_a_verdict_reads_exactly(fields: dict[str, Any], text: str) -> None:
    assert result_text(verdict(**fields)) == text
