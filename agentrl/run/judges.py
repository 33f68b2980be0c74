"""The judges of a run: those that the config names, or those that the run starts."""

import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence

from agentrl.cluster.node_judges import node_judges
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient
from agentrl.judge.connection import JudgeAddress, JudgeConnection, JudgeKeys
from agentrl.judge.local import LocalJudge
from agentrl.rewards.code_tests import CODE_TESTS_REWARD, CodeTestsConfig
from agentrl.servers.session import bearer_token
from agentrl.tools.base import ToolConfig
from agentrl.tools.jupyter_tool import JUPYTER_TOOL
from agentrl.tools.loader import JUDGE_TOOLS

_BUILT_IN: dict[str, type[JudgeKeys]] = {**JUDGE_TOOLS, CODE_TESTS_REWARD: CodeTestsConfig}
_TIMEOUT_S = 10.0
MAX_SESSIONS = 256
"""Python sessions of a judge that the run starts, if it has the notebook tool."""


def needs_judge(tools: Sequence[ToolConfig], reward: RewardSection) -> bool:
    """Return whether a tool or the reward leaves its judge to the run; one of the user's by `host_addr: null`."""
    users = [part.config for part in (*tools, *reward.scorers) if part.class_name not in _BUILT_IN]
    return any("host_addr" in config and config["host_addr"] is None for config in users) or not all(
        connection.url for connection in _connections(tools, reward)
    )


@contextlib.asynccontextmanager
async def driver_judge(
    tools: Sequence[ToolConfig], reward: RewardSection, judge: JudgeSection
) -> AsyncIterator[JudgeAddress | None]:
    """Yield the judges that `judge` names, or one started on this machine; None if nothing needs it.

    With `judge.placement: per_node`, `judges_on_nodes` starts them.

    Raises:
        ConfigError: a judge isolates its programs less than `judge.min_isolation` asks.
        JudgeUnavailableError: one does not answer.
    """
    urls = tuple(dict.fromkeys(judge.hosts))
    named = JudgeAddress(urls=urls, token=bearer_token(judge.token_env, key="judge.token_env")) if urls else None
    for client in _named_clients(tools, reward, named):
        await _check_isolation(client, judge.min_isolation)
    if named is None and judge.placement == "driver" and needs_judge(tools, reward):
        token = secrets.token_urlsafe(32)  # any user of this machine can reach its port
        with LocalJudge(judge, token=token, max_sessions=_num_sessions(tools)) as local:
            yield JudgeAddress(urls=(local.url,), token=token)
    else:
        yield named


@contextlib.asynccontextmanager
async def judges_on_nodes(
    tools: Sequence[ToolConfig], reward: RewardSection, judge: JudgeSection
) -> AsyncIterator[JudgeAddress | None]:
    """Yield a judge on every Ray node if `judge.placement` is `per_node` and something needs one, else None."""
    if judge.placement == "driver" or not needs_judge(tools, reward):
        yield None
        return
    async with node_judges(judge, max_sessions=_num_sessions(tools)) as placed:
        await _check_isolation(JudgeConnection().client(placed, owner="judge"), judge.min_isolation)
        yield placed


def _num_sessions(tools: Sequence[ToolConfig]) -> int:
    return MAX_SESSIONS if any(tool.class_name == JUPYTER_TOOL for tool in tools) else 0


def _named_clients(tools: Sequence[ToolConfig], reward: RewardSection, named: JudgeAddress | None) -> list[JudgeClient]:
    """Return a client of every set of judges that the config names: for the run, for a tool or for the reward."""
    connections = _connections(tools, reward) if named is None else [JudgeKeys(), *_connections(tools, reward)]
    judges = [own.address(named, owner="judge") for own in connections if named or own.url]
    clients = [JudgeConnection().client(address, owner="judge") for address in judges]
    return list({tuple(client.urls): client for client in clients}.values())


def _connections(tools: Sequence[ToolConfig], reward: RewardSection) -> list[JudgeKeys]:
    """Return what the config says of the judge, for every built-in tool and reward that uses one."""
    parts = [part for part in (*tools, *reward.scorers) if part.class_name in _BUILT_IN]
    return [_BUILT_IN[part.class_name or ""](**part.config) for part in parts]


async def _check_isolation(client: JudgeClient, min_isolation: str) -> None:
    await client.start()
    try:
        reports = await client.check(timeout_s=_TIMEOUT_S)
    finally:
        await client.aclose()
    for url, health in zip(client.urls, reports, strict=True):
        if health.isolation > min_isolation:
            raise ConfigError(
                f"judge.min_isolation: the judge at {url} reaches tier {health.isolation}, and `{min_isolation}` is asked "
                "for. Give it a machine that can isolate, or name the tier that you accept."
            )
