from typing import Any

import pytest

from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.run import RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.rewards.code_tests import CODE_TESTS_REWARD, CodeTestsReward
from agentrl.rewards.loader import build_reward, check_reward
from agentrl.rewards.math_answer import MathAnswerReward
from agentrl.run.judges import needs_judge
from agentrl.types import Deadline, Prompt, Turn


class LengthReward:
    """A user's own reward."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.scale = config["scale"]

    async def start(self) -> None: ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        return self.scale * len(turns)

    async def aclose(self) -> None: ...


class SyncScore(LengthReward):
    def score(self, *_: Any) -> float:  # pyright: ignore[reportIncompatibleMethodOverride] - the fault under test
        return 0.0


class NoDeadline(LengthReward):
    async def score(self, prompt: Prompt, turns: tuple[Turn, ...]) -> float:  # pyright: ignore - the fault under test
        return 0.0


def users(name: str, **config: Any) -> RewardSection:
    return RewardSection(class_name=f"{__name__}.{name}", config=config)


async def test_a_users_reward_is_built_with_its_config() -> None:
    reward = build_reward(users("LengthReward", scale=2.0))
    turns = (Turn(text=""), Turn(text=""))
    assert await reward.score(Prompt(prompt_id="p", messages=[]), turns, deadline=Deadline.after(1)) == 4.0


def test_the_default_is_the_answer_check() -> None:
    assert isinstance(build_reward(RewardSection()), MathAnswerReward)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (RewardSection(class_name="no_such_module.Reward"), "`reward.class_name` is `no_such_module.Reward`"),
        (users("LengthReward"), r"cannot be built: KeyError at test_reward_loader\.py:\d+: 'scale'"),
        (users("SyncScore", scale=1.0), "it has no `async def score`"),
        (users("NoDeadline", scale=1.0), r"`score` must take `\(prompt, turns, \*, deadline\)`: got an unexpected"),
        (users("users"), r"it is no class; a function is named by `reward\.function: "),
    ],
)
def test_a_class_that_is_no_reward_is_refused_with_the_reason(section: RewardSection, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build_reward(section)


def test_a_wrong_key_of_a_built_in_reward_is_found_before_any_worker_starts() -> None:
    with pytest.raises(ConfigError, match=r"unknown key `reward\.config\.num_proceses`. Did you mean `num_processes`"):
        check_reward(RewardSection(config={"num_proceses": 3}), JudgeSection())


def test_a_reward_that_leaves_the_judge_to_the_run_gets_it_from_the_context() -> None:
    section = RewardSection(class_name=CODE_TESTS_REWARD)
    assert needs_judge([], section)
    with pytest.raises(ConfigError, match="`host_addr` and `host_port` are not set, and the run has no judge"):
        build_reward(section)
    reward = build_reward(section, ToolContext(judge=JudgeAddress(urls=("http://127.0.0.1:77",))))
    assert isinstance(reward, CodeTestsReward)


def test_the_answer_check_needs_no_judge() -> None:
    assert not needs_judge([], RewardSection())


def test_an_address_that_contradicts_the_runs_judge_is_a_config_error() -> None:
    section = RewardSection(class_name=CODE_TESTS_REWARD, config={"host_addr": "a", "host_port": 1})
    with pytest.raises(
        ConfigError, match=r"`reward\.config` names the judge http://a:1, but `judge.hosts` names http://b:1"
    ):
        check_reward(section, JudgeSection(hosts=["b:1"]))
