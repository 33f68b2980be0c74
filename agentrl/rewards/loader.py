"""Builds the reward of the run config: checked in the driver, built in each worker."""

import inspect
from collections.abc import Callable
from typing import Any

from agentrl.config.class_path import build, import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.reward import RewardPartSection, RewardSection
from agentrl.errors import AgentRLError, ConfigError, UnexplainedError
from agentrl.judge.connection import NO_CONTEXT, JudgeConnection, ToolContext
from agentrl.rewards.base import Reward
from agentrl.rewards.code_tests import CODE_TESTS_REWARD, CodeTestsConfig
from agentrl.rewards.function_reward import FunctionReward
from agentrl.rewards.math_answer import MATH_ANSWER_REWARD, MathAnswerConfig, MathAnswerReward
from agentrl.rewards.weighted_parts import WeightedParts
from agentrl.types import Prompt
from agentrl.user_code import contained

_BUILT_IN: dict[str, type[PlainConfig]] = {MATH_ANSWER_REWARD: MathAnswerConfig, CODE_TESTS_REWARD: CodeTestsConfig}


def check_reward(section: RewardSection, judge: JudgeSection) -> None:
    """Import the section's classes and functions, and check the config of built-in ones.

    Raises:
        ConfigError: a name is missing, a key is unknown or wrong, or a function's parameters cannot be filled.
    """
    for key, part in _parts(section).items():
        if part.function is not None:
            FunctionReward(part.function, part.config, key=f"{key}.function")
        elif part.class_name in _BUILT_IN:
            model = _BUILT_IN[part.class_name]
            settings = read_plain_config(model, part.config, source="reward", prefix=f"{key}.config.")
            if isinstance(settings, JudgeConnection):
                settings.check_address(judge, key=f"{key}.config")
        else:
            _class_of(part, key)


def prompt_check(section: RewardSection) -> Callable[[Prompt], None] | None:
    """Return the rewards' `check_prompt` methods as one function, or None; see `agentrl.rewards.base`."""
    classes = [_class_of(part, key) for key, part in _parts(section).items() if part.function is None]
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


def build_reward(section: RewardSection, context: ToolContext = NO_CONTEXT) -> Reward:
    """Return the reward, not started yet; called in the workers. `context` has the run's judges and extra workers.

    Raises:
        ConfigError: a class or function cannot be found or built, or does not follow the `Reward` protocol.
    """

    def build_part(part: RewardPartSection, key: str) -> Reward:
        if part.function is not None:
            return FunctionReward(part.function, part.config, key=f"{key}.function")
        if part.class_name == MATH_ANSWER_REWARD:
            return MathAnswerReward(part.config, answer_format=section.answer_format)
        cls, where = _class_of(part, key), f"reward `{part.class_name}`"
        return build(cls, {"config": dict(part.config)}, Reward, where=where, context=context)

    rewards = [build_part(part, key) for key, part in _parts(section).items()]
    return WeightedParts(section.parts, rewards) if section.parts else rewards[0]


def _parts(section: RewardSection) -> dict[str, RewardPartSection]:
    """Return the parts, keyed by their config key; a single reward is one part."""
    if not section.parts:
        return {"reward": section.scorers[0]}
    return {f"reward.parts[{index}]": part for index, part in enumerate(section.parts)}


def _class_of(part: RewardPartSection, key: str) -> Any:
    cls = import_by_path(part.class_name or "", key=f"{key}.class_name")
    if not inspect.isclass(cls):
        raise ConfigError(
            f"reward `{part.class_name}`: it is no class; a function is named by `{key}.function: {part.class_name}` instead"
        )
    return cls
