"""Every judge that a config names must isolate as much as the run asks, wherever its address stands."""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from agentrl.config.schema.run import JudgeSection, RewardSection
from agentrl.errors import ConfigError
from agentrl.run.judges import environment_of, judge_for
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
    section = JudgeSection(host_addr=weak_judge.host, host_port=weak_judge.port, min_isolation="B")
    with pytest.raises(ConfigError, match="reaches tier D, and `B` is asked for"):
        async with judge_for([tool_for(None)], REWARD, section):
            pass


async def test_an_address_in_the_tool_config_is_held_to_the_same_tier(weak_judge: WeakJudge):
    with pytest.raises(ConfigError, match="reaches tier D, and `A` is asked for"):
        async with judge_for([tool_for(weak_judge)], REWARD, JudgeSection(min_isolation="A")):
            pass


async def test_an_accepted_remote_judge_is_filled_into_the_tools(weak_judge: WeakJudge):
    section = JudgeSection(host_addr=weak_judge.host, host_port=weak_judge.port, min_isolation="D")
    async with judge_for([tool_for(None)], REWARD, section) as judged:
        assert judged.tools == [replace(tool_for(None), config=tool_for(weak_judge).config)]
        assert judged.reward == REWARD


async def test_a_run_whose_tools_need_no_judge_starts_none():
    async with judge_for([], REWARD, JudgeSection(min_isolation="A")) as judged:
        assert judged.tools == []


async def test_of_several_judges_each_is_held_to_the_tier(weak_judge: WeakJudge):
    hosts = [f"{weak_judge.host}:{weak_judge.port}", f"http://localhost:{weak_judge.port}"]
    with pytest.raises(ConfigError, match="reaches tier D, and `C` is asked for"):
        async with judge_for([tool_for(None)], REWARD, JudgeSection(hosts=hosts, min_isolation="C")):
            pass
    several = replace(tool_for(None), config=tool_for(None).config | {"hosts": None})
    async with judge_for([several], REWARD, JudgeSection(hosts=hosts, min_isolation="D")) as judged:
        assert judged.tools[0].config["hosts"] == [f"http://{hosts[0]}", hosts[1]]


async def test_the_judge_that_a_run_starts_answers_only_with_its_own_token(monkeypatch: pytest.MonkeyPatch):
    section = JudgeSection(min_isolation="D", num_slots=1)
    async with judge_for([tool_for(None)], REWARD, section) as judged:
        config = judged.tools[0].config
        [(variable, token)] = judged.secret_env.items()
        assert config["token_env"] == variable
        assert token not in repr(judged)
        url = f"http://{config['host_addr']}:{config['host_port']}"
        for path in ("/v1/submissions", "/run/batch", "/run_code"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                post(url + path)
        with environment_of(judged):
            tool = PythonTool(config, None)
            await tool.start()
            await tool.aclose()
        assert variable not in os.environ


async def test_a_tool_of_the_users_that_has_no_key_for_the_token_is_refused():
    tool = ToolConfig(class_name="my_tools.Runner", config={"host_addr": None, "host_port": None})
    with pytest.raises(ConfigError, match=r"tool `my_tools\.Runner`: .* Add `token_env: null`"):
        async with judge_for([tool], REWARD, JudgeSection(min_isolation="D", num_slots=1)):
            pass


async def test_a_judge_per_node_leaves_the_addresses_open_until_ray_runs():
    async with judge_for([tool_for(None)], REWARD, JudgeSection(placement="per_node")) as judged:
        assert judged.lacks_judge
