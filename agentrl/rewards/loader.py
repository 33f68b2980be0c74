"""Builds the reward of the run config: checks and the judge's address in the driver, the object in each worker."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from agentrl.config.class_path import import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema.reward import AnswerFormat, RewardPartSection, RewardSection
from agentrl.config.schema.run import JudgeSection
from agentrl.errors import AgentRLError, ConfigError, UnexplainedError
from agentrl.judge.connection import check_address, fill_address, lacks_address
from agentrl.rewards.base import Reward
from agentrl.rewards.code_tests import CODE_TESTS_REWARD, CodeTestsConfig
from agentrl.rewards.function_reward import FunctionReward
from agentrl.rewards.math_answer import MATH_ANSWER_REWARD, MathAnswerConfig, MathAnswerReward
from agentrl.rewards.weighted_parts import RewardPart, WeightedParts
from agentrl.types import Prompt
from agentrl.user_code import contained, described, require_parameters

_BUILT_IN: dict[str, type[PlainConfig]] = {MATH_ANSWER_REWARD: MathAnswerConfig, CODE_TESTS_REWARD: CodeTestsConfig}
_METHODS = ("start", "score", "aclose")


def check_reward(section: RewardSection, judge: JudgeSection) -> RewardSection:
    """Return the section with every key of a built-in reward's config filled in, without importing user code.

    Raises:
        ConfigError: unknown or wrong keys, or an address that contradicts `judge`.
    """

    def checked(part: RewardPartSection, key: str) -> dict[str, Any]:
        model = None if part.class_name is None else _BUILT_IN.get(part.class_name)
        config = part.config
        if model is not None:
            settings = read_plain_config(model, config, source="reward", prefix=f"{key}.config.")
            config = settings.model_dump(mode="json")
        check_address(config, judge, key=f"{key}.config")
        return config

    return _with_configs(section, checked)


def import_rewards(section: RewardSection) -> None:
    """Check that the section's classes and functions can be imported, and functions called as rewards.

    Raises:
        ConfigError: a module or a name is missing, or a function's parameters cannot be filled.
    """
    for part, key in zip(section.scorers, _keys(section), strict=True):
        if part.function is not None:
            FunctionReward(part.function, part.config, key=f"{key}.function")
        elif part.class_name is not None:
            import_by_path(part.class_name, key=f"{key}.class_name")


def reward_needs_judge(section: RewardSection) -> bool:
    """Return whether a reward still lacks the address of its judge (after `check_reward`)."""
    return any(lacks_address(part.config) for part in section.scorers)


def fill_reward_address(section: RewardSection, urls: Sequence[str], *, token_env: str | None = None) -> RewardSection:
    """Return the section with the running judges' addresses filled in for `host_addr: null`."""
    return _with_configs(section, lambda part, _: fill_address(part.config, urls, token_env=token_env))


def prompt_check(section: RewardSection) -> Callable[[Prompt], None] | None:
    """Return the rewards' `check_prompt` methods as one function, or None; see `agentrl.rewards.base`.

    Raises:
        ConfigError: a class cannot be found.
    """
    classes = [
        import_by_path(part.class_name, key=f"{key}.class_name")
        for part, key in zip(section.scorers, _keys(section), strict=True)
        if part.function is None and part.class_name is not None
    ]
    checks = [cls.check_prompt for cls in classes if hasattr(cls, "check_prompt")]

    def check_prompt(prompt: Prompt) -> None:
        for check in checks:
            try:
                contained(check, prompt)
            except AgentRLError:
                raise
            except Exception as error:
                raise UnexplainedError.of("`check_prompt` of the reward", error) from error

    return check_prompt if checks else None


def build_reward(section: RewardSection) -> Reward:
    """Return the reward, not started yet; called in the workers.

    Raises:
        ConfigError: a class or function cannot be found or built, or does not follow the `Reward` protocol.
    """
    built = [
        _build(part, key, section.answer_format) for part, key in zip(section.scorers, _keys(section), strict=True)
    ]
    if not section.parts:
        return built[0]
    return WeightedParts(
        [
            RewardPart(name=part.name, weight=part.weight, reward=reward)
            for part, reward in zip(section.parts, built, strict=True)
        ]
    )


def _build(part: RewardPartSection, key: str, answer_format: AnswerFormat) -> Reward:
    if part.function is not None:
        return FunctionReward(part.function, part.config, key=f"{key}.function")
    path = part.class_name or ""
    where = f"reward `{path}`"
    reward_class = import_by_path(path, key=f"{key}.class_name")
    if not inspect.isclass(reward_class):
        raise ConfigError(
            f"{where}: it is no class with {', '.join(_METHODS)}; a function is named by `{key}.function: {path}` instead"
        )
    for method in _METHODS:
        if not inspect.iscoroutinefunction(getattr(reward_class, method, None)):
            raise ConfigError(
                f"{where}: it has no `async def {method}`; a reward has {', '.join(_METHODS)} (`agentrl.rewards.base.Reward`)"
            )
    try:
        if path == MATH_ANSWER_REWARD:
            return MathAnswerReward(dict(part.config), answer_format=answer_format)
        reward: Reward = contained(cast(Any, reward_class), dict(part.config))
    except ConfigError:
        raise
    except Exception as error:
        # The user's constructor may raise anything.
        raise ConfigError(f"{where}: cannot be built: {described(error)}") from error
    try:
        require_parameters(reward.start)
        require_parameters(reward.score, "prompt", "turns", named=["deadline"])
        require_parameters(reward.aclose)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}") from error
    return reward


def _keys(section: RewardSection) -> list[str]:
    """Return the config key of each part."""
    return [f"reward.parts[{index}]" for index in range(len(section.parts))] or ["reward"]


def _with_configs(
    section: RewardSection, config_of: Callable[[RewardPartSection, str], dict[str, Any]]
) -> RewardSection:
    configs = [config_of(part, key) for part, key in zip(section.scorers, _keys(section), strict=True)]
    if not section.parts:
        return replace(section, config=configs[0])
    parts = [replace(part, config=config) for part, config in zip(section.parts, configs, strict=True)]
    return replace(section, parts=parts)
