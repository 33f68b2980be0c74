"""A reward whose code is not ours, on an event loop of its own: if it blocks, other episodes and all deadlines go on."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

from agentrl.rewards.base import Reward
from agentrl.rewards.function_reward import FunctionReward
from agentrl.rewards.weighted_parts import WeightedParts
from agentrl.tools.tool_thread import ToolThread
from agentrl.types import Deadline, Prompt, Turn

_CLOSE_TIMEOUT_S = 5.0


def where_it_may_block(reward: Reward) -> Reward:
    """Return the same reward, on the worker's own event loop if its code is ours, else in a thread; parts one by one."""
    if isinstance(reward, WeightedParts):
        return reward.mapped(where_it_may_block)
    is_ours = type(reward).__module__.partition(".")[0] == "agentrl" and not isinstance(reward, FunctionReward)
    return reward if is_ours else _RewardThread(reward)


class _RewardThread:
    """See `Reward`."""

    def __init__(self, reward: Reward) -> None:
        self._reward = reward
        self._thread = ToolThread("the reward")

    async def start(self) -> None:
        """See `Reward.start`."""
        await self._thread.run(self._reward.start())

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float | Mapping[str, Any]:
        """See `Reward.score`."""
        return await self._thread.run(self._reward.score(prompt, turns, deadline=deadline))

    async def aclose(self) -> None:
        """See `Reward.aclose`; one that still blocks is left to itself."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await self._thread.run(self._reward.aclose())
        self._thread.close()
