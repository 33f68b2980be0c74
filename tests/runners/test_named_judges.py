"""Every judge that a config names must isolate as much as the run asks, wherever its address stands."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agentrl.config.schema import JudgeSection, RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.local import LocalJudge
from agentrl.runners.run import judge_for
from agentrl.tools.base import ToolConfig
from agentrl.tools.python_tool import PYTHON_TOOL

REWARD = RewardSection()


@pytest.fixture(scope="module")
def weak_judge() -> Iterator[LocalJudge]:
    """A judge of tier D, the weakest."""
    with LocalJudge(JudgeSection(min_isolation="D")) as judge:
        yield judge


def tool_for(judge: LocalJudge | None) -> ToolConfig:
    address = {"host_addr": judge.host, "host_port": judge.port} if judge else {"host_addr": None, "host_port": None}
    return ToolConfig(class_name=PYTHON_TOOL, config={"type": "native", "token_env": None, **address})


async def test_a_remote_judge_that_isolates_too_little_is_refused(weak_judge: LocalJudge):
    section = JudgeSection(host_addr=weak_judge.host, host_port=weak_judge.port, min_isolation="B")
    with pytest.raises(ConfigError, match="reaches tier D, and `B` is asked for"):
        async with judge_for([tool_for(None)], REWARD, section):
            pass


async def test_an_address_in_the_tool_config_is_held_to_the_same_tier(weak_judge: LocalJudge):
    with pytest.raises(ConfigError, match="reaches tier D, and `A` is asked for"):
        async with judge_for([tool_for(weak_judge)], REWARD, JudgeSection(min_isolation="A")):
            pass


async def test_an_accepted_remote_judge_is_filled_into_the_tools(weak_judge: LocalJudge):
    section = JudgeSection(host_addr=weak_judge.host, host_port=weak_judge.port, min_isolation="D")
    async with judge_for([tool_for(None)], REWARD, section) as (tools, reward):
        assert tools == [replace(tool_for(None), config=tool_for(weak_judge).config)]
        assert reward == REWARD


async def test_a_run_whose_tools_need_no_judge_starts_none():
    async with judge_for([], REWARD, JudgeSection(min_isolation="A")) as (tools, _):
        assert tools == []
