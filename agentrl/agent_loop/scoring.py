"""Scores one trajectory with the reward, which may be user code and must neither block nor end a run."""

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
"""Extra seconds after the deadline for a reward that reports its own time-out, before it is cancelled."""


async def score(reward: Reward, section: RewardSection, prompt: Prompt, turns: tuple[Turn, ...]) -> Score:
    """Return the reward of a trajectory, and its breakdown.

    Raises:
        RolloutError: no answer in time, or a service that the reward needs is unavailable.
        DataError: the prompt cannot be scored, or the reward raised an unexpected exception or returned no number.
        ConfigError: the reward is negative, while unfinished trajectories get 0.
    """
    where = f"reward `{section.label}` of prompt `{prompt.prompt_id}`"
    task = asyncio.create_task(_ask(reward, prompt, turns, Deadline.after(section.timeout_s)))
    try:
        # Not `timeout`: it would wait until the reward has handled the cancellation, which a broken one may never do.
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
            f"{where}: {score.value:g} is below the 0 of unfinished trajectories. Set `reward.score_unfinished: score` to "
            "score those too, or `mask` to leave them out"
        )
    given = given_by_tools(turns)
    return replace(score, metrics={TOOL_REWARD_METRIC: sum(given), **score.metrics}) if given else score


def with_final_rewards(turns: Sequence[Turn], rewards: Mapping[str, float]) -> tuple[Turn, ...]:
    """Return the turns, with each tool's final reward added to the reward of its last result.

    The last turn gets the rewards of tools without a result, so that a penalty for a tool that was never called counts.

    Args:
        turns: turns of the episode.
        rewards: final rewards, keyed by tool name.
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
