"""Asks the reward about one trajectory: it may be anybody's code, and must not hold up or end a run."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.config.reward_schema import RewardSection
from agentrl.errors import AgentRLError, ConfigError, RolloutError, UnexplainedError
from agentrl.rewards.base import Reward
from agentrl.rewards.score import Score, read_score
from agentrl.rewards.tool_rewards import given_by_tools
from agentrl.types import TOOL_REWARD_METRIC, Deadline, Prompt, Turn
from agentrl.user_code import text_of

_GRACE_S = 1.0
"""How long a reward that watches its own deadline has to say so in its own words, before it is cut off."""


async def score(reward: Reward, section: RewardSection, prompt: Prompt, turns: tuple[Turn, ...]) -> Score:
    """Return the reward of a trajectory, and its breakdown.

    Raises:
        RolloutError: no answer in time, or what the reward needs is away.
        DataError: the prompt cannot be scored, or the reward raised what it does not explain, or gave no number.
        ConfigError: the reward is negative, and unfinished trajectories get 0.
    """
    where = f"reward `{section.label}` of prompt `{prompt.prompt_id}`"
    task = asyncio.create_task(_ask(reward, prompt, turns, Deadline.after(section.timeout_s)))
    try:
        # Not `timeout`: that waits until the reward has honoured the cancellation, which a broken one may never do.
        await asyncio.wait({task}, timeout=section.timeout_s + _GRACE_S)
    finally:
        task.cancel()
    if not task.done() or task.cancelled():
        raise RolloutError(f"{where}: no answer in {section.timeout_s:g} s")
    try:
        score = read_score(task.result(), where=where)
    except AgentRLError:
        raise
    except OSError as error:
        raise RolloutError(f"{where}: {type(error).__name__}: {text_of(error)}") from error
    except Exception as error:
        raise UnexplainedError.of(where, error) from error
    if score.value < 0 and section.score_unfinished == "zero":
        raise ConfigError(
            f"{where}: it gave {score.value:g}, below the 0 of trajectories that are cut short. Set "
            "`reward.score_unfinished: score` to have those scored too, or `mask` to leave them out"
        )
    given = given_by_tools(turns)
    return replace(score, metrics={TOOL_REWARD_METRIC: sum(given), **score.metrics}) if given else score


def with_final_rewards(turns: Sequence[Turn], rewards: Mapping[str, float]) -> tuple[Turn, ...]:
    """Return the turns with what each tool gives for the whole episode added to the reward of its last result.

    The last turn gets the sum of those without a result: a penalty for a tool that was never called must count.

    Args:
        turns: of the episode.
        rewards: by the name of the tool.
    """
    missing, later = dict(rewards), []
    for turn in reversed(turns):
        results = list(turn.results)
        for index in reversed(range(len(results))):
            if (given := missing.pop(turn.calls[index].name, None)) is not None:
                results[index] = replace(results[index], reward=(results[index].reward or 0.0) + given)
        later.append(replace(turn, results=tuple(results)))
    if missing and later:
        later[0] = replace(later[0], final_tool_reward=sum(missing.values()))
    return tuple(reversed(later))


async def _ask(reward: Reward, prompt: Prompt, turns: tuple[Turn, ...], deadline: Deadline) -> Any:
    return await reward.score(prompt, turns, deadline=deadline)
