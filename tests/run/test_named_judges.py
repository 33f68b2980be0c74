"""Every judge that a config names must isolate as much as the run asks, wherever its address stands."""

import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.connection import ToolContext
from agentrl.run.judges import driver_judge
from agentrl.tools.base import ToolConfig
from agentrl.tools.python_tool import PYTHON_TOOL, PythonTool

REWARD = RewardSection()


class WeakJudge(NamedTuple):
    host: str
    port: int


@pytest.fixture(scope="module")
def weak_judge() -> Iterator[WeakJudge]:
    """A judge of tier D, the weakest, on whatever machine."""
    command = [
        sys.executable,
        "-m",
        "code_judge_server",
        "--port",
        "0",
        "--use-isolation",
        "D",
        "--require-isolation",
        "D",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = next(line for line in process.stdout if "listening on" in line).split()[-1]
        yield WeakJudge("127.0.0.1", int(url.rpartition(":")[2]))
        process.kill()


def tool_for(judge: WeakJudge | None) -> ToolConfig:
    address = {"host_addr": judge.host, "host_port": judge.port} if judge else {"host_addr": None, "host_port": None}
    return ToolConfig(class_name=PYTHON_TOOL, config={"type": "native", "token_env": None, **address})


def post(url: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=b"{}", method="POST"))


async def test_a_remote_judge_that_isolates_too_little_is_refused(weak_judge: WeakJudge):
    section = JudgeSection(hosts=[f"{weak_judge.host}:{weak_judge.port}"], min_isolation="B")
    with pytest.raises(ConfigError, match="reaches tier D, and `B` is asked for"):
        async with driver_judge([tool_for(None)], REWARD, section):
            pass


async def test_an_address_in_the_tool_config_is_held_to_the_same_tier(weak_judge: WeakJudge):
    with pytest.raises(ConfigError, match="reaches tier D, and `A` is asked for"):
        async with driver_judge([tool_for(weak_judge)], REWARD, JudgeSection(min_isolation="A")):
            pass


async def test_an_accepted_remote_judge_is_handed_on(weak_judge: WeakJudge, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    hosts = [f"{weak_judge.host}:{weak_judge.port}"]
    section = JudgeSection(hosts=hosts, min_isolation="D", token_env="MY_TOKEN")
    async with driver_judge([tool_for(None)], REWARD, section) as judge:
        assert judge is not None
        assert (judge.urls, judge.token) == ((f"http://{weak_judge.host}:{weak_judge.port}",), "s3cret")


async def test_a_run_whose_tools_need_no_judge_starts_none():
    async with driver_judge([], REWARD, JudgeSection(min_isolation="A")) as judge:
        assert judge is None


async def test_of_several_judges_each_is_held_to_the_tier(weak_judge: WeakJudge):
    hosts = [f"{weak_judge.host}:{weak_judge.port}", f"http://localhost:{weak_judge.port}"]
    with pytest.raises(ConfigError, match="reaches tier D, and `C` is asked for"):
        async with driver_judge([tool_for(None)], REWARD, JudgeSection(hosts=hosts, min_isolation="C")):
            pass
    async with driver_judge([tool_for(None)], REWARD, JudgeSection(hosts=hosts, min_isolation="D")) as judge:
        assert judge is not None
        assert judge.urls == (f"http://{hosts[0]}", hosts[1])


@pytest.mark.slow
async def test_the_judge_that_a_run_starts_answers_only_with_its_own_token():
    section = JudgeSection(min_isolation="D", num_slots=1)
    async with driver_judge([tool_for(None)], REWARD, section) as judge:
        assert judge is not None
        assert judge.token is not None
        assert judge.token not in repr(judge)
        for path in ("/v1/submissions", "/run/batch", "/run_code"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                post(judge.urls[0] + path)
        tool = PythonTool(tool_for(None).config, None, ToolContext(judge=judge))
        await tool.start()
        await tool.aclose()


@pytest.mark.slow
async def test_a_tool_of_the_users_may_ask_for_the_runs_judge():
    tool = ToolConfig(class_name="my_tools.Runner", config={"host_addr": None})
    async with driver_judge([tool], REWARD, JudgeSection(min_isolation="D", num_slots=1)) as judge:
        assert judge is not None


async def test_a_judge_per_node_is_not_started_before_ray_runs():
    async with driver_judge([tool_for(None)], REWARD, JudgeSection(placement="per_node")) as judge:
        assert judge is None
