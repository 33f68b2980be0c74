"""The judges of a run: those that the config names, or those that the run starts, filled into its tools and reward."""

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from agentrl.cluster.node_judges import node_judges
from agentrl.config.schema.run import JudgeSection, RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient
from agentrl.judge.connection import JudgeConnection, lacks_address, named_urls, run_urls
from agentrl.judge.local import LocalJudge
from agentrl.rewards.code_tests import CODE_TESTS_REWARD
from agentrl.rewards.loader import fill_reward_address, reward_needs_judge
from agentrl.tools.base import ToolConfig
from agentrl.tools.loader import fill_judge_address, needs_judge
from agentrl.tools.python_tool import PYTHON_TOOL

_JUDGE_TIMEOUT_S = 10.0
_TOKEN_ENV = "AGENTRL_JUDGE_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedJudges:
    """Tools and reward of a run, with the addresses of its judges."""

    tools: list[ToolConfig]
    reward: RewardSection
    secret_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables that the workers need to reach the judges."""

    @property
    def lacks_judge(self) -> bool:
        """True if a tool or the reward still has no address."""
        return needs_judge(self.tools) or reward_needs_judge(self.reward)

    def filled(self, urls: tuple[str, ...], *, token_env: str | None) -> "ResolvedJudges":
        """Return a copy with `urls` in every missing address.

        Raises:
            ConfigError: a tool or reward needs the address, but has no key for the token.
        """
        if token_env is not None:
            _require_token_keys(self.tools, self.reward)
        return replace(
            self,
            tools=fill_judge_address(self.tools, urls, token_env=token_env),
            reward=fill_reward_address(self.reward, urls, token_env=token_env),
        )


@contextlib.asynccontextmanager
async def judge_for(
    tools: list[ToolConfig], reward: RewardSection, judge: JudgeSection
) -> AsyncIterator[ResolvedJudges]:
    """Yield tools and reward with the judges' addresses: running ones, or one started on this machine for the run.

    With `judge.placement: per_node` the addresses are filled in by `node_judges_for`.

    Raises:
        ConfigError: a judge isolates its programs less than `judge.min_isolation` asks.
        JudgeUnavailableError: one does not answer.
    """
    for connection in _named_judges(tools, reward, judge):
        await _check_isolation(connection.client(owner="judge"), judge.min_isolation)
    judged = ResolvedJudges(tools=tools, reward=reward)
    if urls := run_urls(judge):
        yield judged.filled(urls, token_env=judge.token_env)
    elif judged.lacks_judge and judge.placement == "driver":
        # Any user of this machine can reach its port.
        token = secrets.token_urlsafe(32)
        with LocalJudge(judge, token=token) as local:
            yield replace(judged.filled((local.url,), token_env=_TOKEN_ENV), secret_env={_TOKEN_ENV: token})
    else:
        yield judged


@contextlib.asynccontextmanager
async def node_judges_for(judged: ResolvedJudges, judge: JudgeSection) -> AsyncIterator[ResolvedJudges]:
    """Yield the same with a judge on every Ray node filled in, if `judge.placement` is `per_node`.

    Raises:
        ConfigError, JudgeUnavailableError: as `judge_for`.
    """
    if judge.placement == "driver" or not judged.lacks_judge:
        yield judged
        return
    async with node_judges(judge) as placed:
        client = JudgeClient(
            placed.urls, token=placed.token, concurrency=1, batch_size=1, batch_timeout_s=_JUDGE_TIMEOUT_S
        )
        await _check_isolation(client, judge.min_isolation)
        yield replace(judged.filled(placed.urls, token_env=_TOKEN_ENV), secret_env={_TOKEN_ENV: placed.token})


@contextlib.contextmanager
def environment_of(judged: ResolvedJudges) -> Iterator[None]:
    """Set the environment variables that reach the run's judges in this process, as in its workers."""
    os.environ.update(judged.secret_env)
    try:
        yield
    finally:
        for name in judged.secret_env:
            os.environ.pop(name, None)


def _require_token_keys(tools: Sequence[ToolConfig], reward: RewardSection) -> None:
    own = {f"tool `{tool.class_name}`": tool.config for tool in tools}
    own |= {f"reward `{scorer.class_name}`": scorer.config for scorer in reward.scorers}
    for owner, config in own.items():
        if lacks_address(config) and "token_env" not in config:
            raise ConfigError(
                f"{owner}: its `config` asks for the run's judge (`host_addr: null`), which answers only with a token. Add "
                "`token_env: null`, and send the variable that the run names there as a bearer token"
            )


def _named_judges(tools: list[ToolConfig], reward: RewardSection, judge: JudgeSection) -> list[JudgeConnection]:
    """Return every set of judges that the config names: for the run, for a tool or for the reward."""
    own = [tool.config for tool in tools if tool.class_name == PYTHON_TOOL]
    own += [scorer.config for scorer in reward.scorers if scorer.class_name == CODE_TESTS_REWARD]
    named = {(run_urls(judge), judge.token_env)}
    # A tool that names the judges of the run is given the run's token.
    named |= {(named_urls(config, key="config"), config.get("token_env") or judge.token_env) for config in own}
    return [
        JudgeConnection(hosts=list(urls), token_env=token_env) for urls, token_env in sorted(named, key=str) if urls
    ]


async def _check_isolation(client: JudgeClient, min_isolation: str) -> None:
    await client.start()
    try:
        reports = await client.check(timeout_s=_JUDGE_TIMEOUT_S)
    finally:
        await client.aclose()
    for url, health in zip(client.urls, reports, strict=True):
        if health.isolation > min_isolation:
            raise ConfigError(
                f"judge.min_isolation: the judge at {url} reaches tier {health.isolation}, and `{min_isolation}` is asked "
                "for. Give it a machine that can isolate, or name the tier that you accept."
            )
