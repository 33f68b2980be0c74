"""Tools of a real MCP server on stdio: what the policy reads, and what happens when the server dies, hangs or changes."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from agentrl.errors import ConfigError, RolloutError, ToolChangedError, ToolError
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.tools.mcp import server
from agentrl.types import Deadline, ToolCall, ToolResult, ToolStatus
from tests.processes import children_since, still_running
from tests.tools.test_tool_configs_are_plain import live_objects

SERVER = Path(__file__).with_name("mcp_server.py")
COMMAND = [sys.executable, str(SERVER)]


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> list[ToolConfig]:
    """The tools of the server, as a driver gets them."""
    file = tmp_path_factory.mktemp("tools") / "tools.yaml"
    file.write_text(f"tools:\n  - type: mcp\n    command: {COMMAND}\n    rename: {{add: plus}}\n")
    return with_server_tools(load_tool_file(file))


@contextlib.asynccontextmanager
async def started(configs: list[ToolConfig], *, timeout_s: float = 20.0, **keys: Any) -> AsyncIterator[ToolExecutor]:
    """Start the tools with other keys of their server; all its processes are gone afterwards."""
    changed = [replace(config, config=config.config | {"server": config.config["server"] | keys}) for config in configs]
    executor = ToolExecutor(build_tools(changed), timeout_s=timeout_s)
    others = psutil.Process().children()
    await executor.start()
    try:
        yield executor
    finally:
        await executor.aclose()
    assert still_running(children_since(others), within_s=0) == []


async def ask(
    executor: ToolExecutor, name: str, episode: str = "e", limit_s: float = 60.0, **arguments: Any
) -> ToolResult:
    call = ToolCall(call_id="0", name=name, arguments=arguments)
    [result] = await executor.execute(
        [call], Episode(episode_id=episode, prompt_id="p"), deadline=Deadline.after(limit_s)
    )
    return result


def written(log: Path) -> str:
    return log.read_text() if log.exists() else ""


def test_an_entry_gives_the_servers_tools_with_their_schemas(listed: list[ToolConfig]) -> None:
    [add, *_] = [config.tool_schema["function"] for config in listed if config.tool_schema]
    assert (add["name"], add["description"]) == ("plus", "Add two numbers.")
    assert add["parameters"]["required"] == ["a", "b"]
    assert [config.config["tool"] for config in listed if config.config["is_idempotent"]] == ["add"]


async def test_the_policy_reads_texts_errors_and_notes_of_pictures_and_nothing_is_left(
    listed: list[ToolConfig], tmp_path: Path
) -> None:
    async with started(listed) as executor:
        assert await ask(executor, "plus", a=1, b=2) == replace(
            await ask(executor, "plus", a=1, b=2), text="3", status=ToolStatus.OK, wall_time_s=pytest.approx(0, abs=9)
        )
        assert (await ask(executor, "fail")).status is ToolStatus.ERROR
        assert (await ask(executor, "plus", a="x", b=2)).status is ToolStatus.INVALID_ARGUMENTS
        assert (await ask(executor, "picture")).text == "a cat\n[image: image/png, 12 bytes, not shown]"
        long = await ask(executor, "many", characters=200_000)
        assert (long.status, long.truncated) == (ToolStatus.OK, True)
        assert long.text.endswith("\n[cut: 68928 more characters]")
        longer = await ask(executor, "many", characters=9 << 20)
        assert (longer.status, longer.text) == (ToolStatus.ERROR, "failure: the answer is longer than 8 MiB")
        child = psutil.Process(int((await ask(executor, "fork")).text))
        await check_that_a_late_call_is_cancelled(executor, tmp_path / "log")
        assert child.is_running()
    assert still_running([child], within_s=0) == []


async def check_that_a_late_call_is_cancelled(executor: ToolExecutor, log: Path) -> None:
    late = asyncio.create_task(ask(executor, "wait", limit_s=1.0, seconds=60, file=str(log)))
    assert (await ask(executor, "plus", a=1, b=2, after_s=0.1)).text == "3"  # calls are multiplexed
    assert (await late).status is ToolStatus.TIMEOUT
    for _ in range(100):
        if written(log):
            break
        await asyncio.sleep(0.05)
    assert written(log) == "cancelled"


async def test_a_crash_repeats_idempotent_calls_and_blames_the_infrastructure_for_others(
    listed: list[ToolConfig], tmp_path: Path
) -> None:
    async with started(listed) as executor:
        repeated = asyncio.create_task(ask(executor, "plus", "a", a=1, b=2, after_s=0.5))
        lost = asyncio.create_task(ask(executor, "wait", "b", seconds=60, file=str(tmp_path / "log")))
        await asyncio.sleep(0.2)
        with pytest.raises(RolloutError, match="lost during a call of `kill`: Connection closed: goodbye"):
            await ask(executor, "kill", "c", how="exit")
        with pytest.raises(RolloutError, match="lost during a call of `wait`"):
            await lost
        assert (await repeated).text == "3"
        assert (await ask(executor, "plus", "d", a=2, b=2)).text == "4"


@pytest.mark.slow
async def test_a_hung_server_is_replaced_and_its_oldest_call_times_out(
    listed: list[ToolConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SIGN_OF_LIFE_S", (0.5, 0.5))
    async with started(listed, timeout_s=3.0) as executor:
        hangs = asyncio.create_task(ask(executor, "kill", "a", how="stop"))
        await asyncio.sleep(0.3)
        waits = asyncio.create_task(ask(executor, "wait", "b", seconds=0.1, file=str(tmp_path / "log")))
        assert (await hangs).status is ToolStatus.TIMEOUT
        with pytest.raises(RolloutError, match="lost during a call of `wait`"):
            await waits
        assert (await ask(executor, "plus", "d", limit_s=20.0, a=2, b=2)).text == "4"


async def test_calls_that_hang_their_trajectorys_own_server_are_all_to_blame(
    listed: list[ToolConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SIGN_OF_LIFE_S", (0.1, 0.1))
    async with started(listed, scope="trajectory", pool=1) as executor:
        results = await asyncio.gather(*(ask(executor, "kill", limit_s=1.0, how="stop") for _ in range(3)))
        for result in results:
            assert (result.status, result.text.splitlines()[1]) == (
                ToolStatus.TIMEOUT,
                "The server was restarted: its state is lost.",
            )
        assert (await ask(executor, "note", text="x")).text == "x"


async def test_a_call_with_little_time_ends_no_server_that_is_busy_for_others(
    listed: list[ToolConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_SIGN_OF_LIFE_S", (0.1, 0.1))
    async with started(listed, timeout_s=4.0) as executor:
        busy = asyncio.create_task(ask(executor, "block", "a", seconds=1.0))
        await asyncio.sleep(0.1)
        assert (await ask(executor, "plus", "b", limit_s=0.3, a=1, b=2)).status is ToolStatus.TIMEOUT
        assert (await busy).text == "blocked"


@pytest.mark.slow
async def test_a_server_per_trajectory_keeps_its_state_to_itself(listed: list[ToolConfig]) -> None:
    async with started(listed, scope="trajectory", pool=1) as executor:
        assert (await ask(executor, "note", "a", text="x")).text == "x"
        assert (await ask(executor, "note", "b", text="y")).text == "y"
        assert (await ask(executor, "note", "a", text="z")).text == "x, z"
        with pytest.raises(RolloutError, match="lost, with its state"):
            await ask(executor, "kill", "a", how="exit")
        assert (await ask(executor, "note", "b", text="y")).text == "y, y"
        await executor.end_episode(Episode(episode_id="b", prompt_id="p"))


@pytest.mark.slow
async def test_a_restarted_server_with_other_arguments_stops_the_run(listed: list[ToolConfig], tmp_path: Path) -> None:
    async with started(listed, env={"CHANGED": str(tmp_path / "changed")}) as executor:
        assert (await ask(executor, "plus", a=1, b=2)).text == "3"
        (tmp_path / "changed").touch()
        with pytest.raises(RolloutError):
            await ask(executor, "kill", how="exit")
        with pytest.raises(ToolChangedError, match="its tool `add` takes other arguments than at the start of the run"):
            await ask(executor, "plus", a=1, b=2)


async def test_a_server_that_cannot_start_is_refused_with_its_last_words(
    listed: list[ToolConfig], tmp_path: Path
) -> None:
    with pytest.raises(ToolError, match=r"MCP server `/no/such`: cannot be started: .*No such file"):
        async with started(listed, command=["/no/such"]):
            pass
    file = tmp_path / "tools.yaml"
    file.write_text("tools: [{type: mcp, command: [python, -c, 'raise SystemExit(\"no key\")']}]")
    with pytest.raises(ConfigError, match="MCP server `python`: cannot be started: Connection closed: no key"):
        with_server_tools(load_tool_file(file))


def test_the_tools_of_a_server_pass_rays_serialiser_as_plain_data(listed: list[ToolConfig]) -> None:
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    received = cloudpickle.loads(cloudpickle.dumps(listed))
    assert received == listed
    for config in received:
        assert live_objects([config.class_name, config.config, config.tool_schema]) == []


@pytest.mark.slow
def test_the_sdk_is_imported_only_for_servers_and_torch_never() -> None:
    code = (
        "import sys, agentrl.tools.loader, agentrl.tools.builder, agentrl.tools.executor\n"
        "assert 'mcp' not in sys.modules\n"
        "import agentrl.tools.mcp.tool, agentrl.tools.mcp.listing\n"
        "assert 'mcp' in sys.modules and 'torch' not in sys.modules and 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_keys_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    for keys, problem in (
        ("", "must have either `command` or `url`"),
        ("command: [x], url: 'http://x'", "must have either `command` or `url`"),
        ("url: 'http://x', env: {A: b}", "`env` belongs to `command`"),
        ("command: [x], headers: {A: b}", "`headers` belong to `url`"),
        ("command: [x], scoop: worker", "unknown key `tools\\[0\\].scoop`. Did you mean `scope`"),
        ("command: [x], scope: run", "`tools\\[0\\].scope` is 'run'"),
    ):
        file.write_text(f"tools: [{{type: mcp, {keys}}}]")
        with pytest.raises(ConfigError, match=problem):
            load_tool_file(file)


def test_no_message_shows_a_secret_of_a_servers_entry(tmp_path: Path) -> None:
    file = tmp_path / "tools.yaml"
    for entry, problem in (
        ("url: 'http://x', headers: {Authorization: s3cret}", "has the keys url, headers; name the tool by"),
        ("type: mcp, url: 'http://x', headers: {Key: [s3cret]}", "headers.Key` is of type `list`, and must be text"),
        ("type: mcp, url: 'http://x', headers: [s3cret]", "headers` is of type `list`, and must be a mapping"),
        ("type: mcp, command: [x], env: {KEY: {a: s3cret}}", "env.KEY` is of type `dict`, and must be text"),
        ("type: mcp, url: 'http://me:s3cret@127.0.0.1:1/mcp?key=s3cret'", "MCP server `http://127.0.0.1:1/mcp`: "),
    ):
        file.write_text(f"tools: [{{{entry}}}]")
        with pytest.raises(ConfigError) as refusal:
            with_server_tools(load_tool_file(file))
        assert problem in str(refusal.value)
        assert "s3cret" not in str(refusal.value)


WORKER = """
import asyncio, sys, time
from pathlib import Path
import psutil
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file, with_server_tools
from tests.tools.test_mcp_tool import ask

async def main():
    configs = with_server_tools(load_tool_file(Path(sys.argv[1])))
    executor = ToolExecutor(build_tools(configs), timeout_s=20)
    await executor.start()
    left_the_group = (await ask(executor, "fork")).text
    print(left_the_group, *(process.pid for process in psutil.Process().children(recursive=True)), flush=True)
    time.sleep(600)

asyncio.run(main())
"""


@pytest.mark.slow
def test_servers_die_with_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Also one that ignores the end of its input and SIGTERM, and what it started in another session."""
    file = tmp_path / "tools.yaml"
    file.write_text(f"tools: [{{type: mcp, command: {COMMAND}, env: {{STUBBORN: 'yes'}}}}]")
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(file)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": root},
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None
        processes = [psutil.Process(int(pid)) for pid in worker.stdout.readline().split()]
        worker.kill()
    assert len(processes) == 4  # the server, what it started and the guardian
    assert still_running(processes, within_s=20) == []
