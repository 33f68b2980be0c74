"""From `reward` in the run config to a reward: its judge's address on the driver, the live object in each worker."""

import inspect
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from agentrl.config.class_path import import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema import JudgeSection, RewardSection
from agentrl.errors import ConfigError
from agentrl.judge.connection import check_address, fill_address, lacks_address
from agentrl.rewards.base import Reward
from agentrl.rewards.code_tests import CODE_TESTS_REWARD, CodeTestsConfig
from agentrl.rewards.math_answer import MATH_ANSWER_REWARD, MathAnswerConfig, MathAnswerReward

_BUILT_IN: dict[str, type[PlainConfig]] = {MATH_ANSWER_REWARD: MathAnswerConfig, CODE_TESTS_REWARD: CodeTestsConfig}
_METHODS = ("start", "score", "aclose")


def check_reward(section: RewardSection, judge: JudgeSection) -> RewardSection:
    """Return the section with every key of a built-in reward's config spelled out (driver side, no imports of users').

    Raises:
        ConfigError: unknown or wrong keys, or an address that contradicts `judge`.
    """
    model = _BUILT_IN.get(section.class_name)
    if model is not None:
        checked = read_plain_config(model, section.config, source="reward", prefix="reward.config.")
        section = replace(section, config=checked.model_dump(mode="json"))
    check_address(section.config, judge, key="reward.config")
    return section


def reward_needs_judge(section: RewardSection) -> bool:
    """Return whether the reward asks for the address of a judge that nobody has named yet (after `check_reward`)."""
    return lacks_address(section.config)


def fill_reward_address(section: RewardSection, urls: Sequence[str], *, token_env: str | None = None) -> RewardSection:
    """Return the section with the running judges' addresses where its own is absent (`host_addr: null`)."""
    return replace(section, config=fill_address(section.config, urls, token_env=token_env))


def build_reward(section: RewardSection) -> Reward:
    """Return the reward, not yet started (worker side).

    Raises:
        ConfigError: the class cannot be found or built, or does not follow the `Reward` protocol.
    """
    where = f"reward `{section.class_name}`"
    reward_class = import_by_path(section.class_name, key="reward.class_name")
    if not inspect.isclass(reward_class):
        raise ConfigError(f"{where}: it is no class; a reward is a class with {', '.join(_METHODS)}")
    for method in _METHODS:
        if not inspect.iscoroutinefunction(getattr(reward_class, method, None)):
            raise ConfigError(
                f"{where}: it has no `async def {method}`; a reward has {', '.join(_METHODS)} (`agentrl.rewards.base.Reward`)"
            )
    try:
        if section.class_name == MATH_ANSWER_REWARD:
            return MathAnswerReward(dict(section.config), answer_format=section.answer_format)
        return cast(Any, reward_class)(dict(section.config))
    except (TypeError, ValueError, LookupError, AttributeError, OSError) as error:
        raise ConfigError(f"{where}: cannot be built: {type(error).__name__}: {error}") from error
