"""Scores one trajectory with the reward, which may be user code and must neither block nor end a run."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.config.schema.reward import RewardSection
from agentrl.errors import ConfigError, RolloutError
from agentrl.rewards.base import Reward
from agentrl.rewards.environment_reward import given_by_environment
from agentrl.rewards.function_reward import FunctionReward
from agentrl.rewards.score import Score, read_score
from agentrl.rewards.tool_rewards import given_by_tools
from agentrl.rewards.weighted_parts import WeightedParts
from agentrl.tools.tool_thread import ToolThread, finish_start, finished, result_of
from agentrl.types import ENVIRONMENT_REWARD_METRIC, TOOL_REWARD_METRIC, Deadline, Prompt, Turn
from agentrl.user_code import described

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0
_GRACE_S = 1.0
"""Extra seconds after the deadline for a reward that reports its own time-out, before it is cancelled."""


def isolated_reward(reward: Reward) -> Reward:
    """Return the reward, in a thread of its own if it is user code; weighted parts are treated one by one."""
    if isinstance(reward, WeightedParts):
        return reward.mapped(isolated_reward)
    is_ours = type(reward).__module__.partition(".")[0] == "agentrl" and not isinstance(reward, FunctionReward)
    return reward if is_ours else _RewardThread(reward)


class _RewardThread:
    """See `Reward`."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._name = f"reward `{type(reward).__module__}.{type(reward).__qualname__}`"
        self._thread = ToolThread("the reward")

    async def start(self) -> None:
        """See `Reward.start`.

        Raises:
            ConfigError: it raised an unexpected exception, or did not return in time.
        """
        try:
            await finish_start(self._thread.run(self._reward.start()), self._name, error_class=ConfigError)
        except BaseException:
            self._thread.close()
            raise

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float | Mapping[str, Any]:
        """See `Reward.score`."""
        return await self._thread.run(self._reward.score(prompt, turns, deadline=deadline))

    async def aclose(self) -> None:
        """See `Reward.aclose`; a failure is logged, and a call that blocks is abandoned."""
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._thread.run(self._reward.aclose())
        except Exception as error:  # noqa: BLE001 - `aclose` is user code
            logger.warning("%s: `aclose` failed: %s", self._name, described(error))
        self._thread.close()


async def score(reward: Reward, section: RewardSection, prompt: Prompt, turns: tuple[Turn, ...]) -> Score:
    """Return the reward of a trajectory, and its breakdown.

    Raises:
        RolloutError: no answer in time, or a service that the reward needs is unavailable.
        DataError: the prompt cannot be scored, or the reward raised an unexpected exception or returned no number.
        ConfigError: the reward is negative, while unfinished trajectories get 0.
    """
    where = f"reward `{section.label}` of prompt `{prompt.prompt_id}`"
    call = asyncio.create_task(reward.score(prompt, turns, deadline=Deadline.after(section.timeout_s)))
    task = await finished(call, section.timeout_s + _GRACE_S)
    if task is None:
        raise RolloutError(f"{where}: no answer in {section.timeout_s:g} s")
    score = read_score(result_of(task, where), where=where)
    if score.value < 0 and section.score_unfinished == "zero":
        raise ConfigError(
            f"{where}: {score.value:g} is below the 0 of unfinished trajectories. Set `reward.score_unfinished: score` to "
            "score those too, or `mask` to leave them out"
        )
    given = {TOOL_REWARD_METRIC: given_by_tools(turns), ENVIRONMENT_REWARD_METRIC: given_by_environment(turns)}
    sums = {name: sum(rewards) for name, rewards in given.items() if rewards}
    return replace(score, metrics={**sums, **score.metrics}) if sums else score


def with_final_rewards(turns: Sequence[Turn], rewards: Mapping[str, float]) -> tuple[Turn, ...]:
    """Return the turns, with each tool's final reward added to the reward of its last result.

    `rewards` are keyed by tool name. The last turn gets those of tools without a result, so that a penalty for a tool that was
    never called counts.
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
