"""Rewards of the environment for single turns, as a reward of the whole trajectory."""

from collections.abc import Sequence

from agentrl.types import Prompt, Turn


def environment_reward(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    """Return the sum of the environment's rewards (`Observation.reward`), for `reward.function` or one of `reward.parts`."""
    return sum(given_by_environment(turns))


def given_by_environment(turns: Sequence[Turn]) -> list[float]:
    """Return the rewards of observations in order."""
    return [turn.environment_reward for turn in turns if turn.environment_reward is not None]
