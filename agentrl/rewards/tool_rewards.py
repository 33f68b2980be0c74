"""Rewards of the tools, as a reward of the whole trajectory."""

from collections.abc import Sequence

from agentrl.types import Prompt, Turn


def tool_reward(prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    """Return the sum of the tools' rewards (`ToolResult.reward`), for `reward.function` or one of `reward.parts`."""
    return sum(given_by_tools(turns))


def given_by_tools(turns: Sequence[Turn]) -> list[float]:
    """Return the rewards of tool results in order, then those of tools without a result."""
    rewards = [result.reward for turn in turns for result in turn.results]
    rewards += [turn.final_tool_reward for turn in turns]
    return [float(reward) for reward in rewards if reward is not None]
