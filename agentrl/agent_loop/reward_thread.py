"""Thread for a user's reward, with its own event loop: if it blocks, other episodes and deadlines continue."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from agentrl.errors import AgentRLError, ConfigError
from agentrl.rewards.base import Reward
from agentrl.rewards.function_reward import FunctionReward
from agentrl.rewards.weighted_parts import WeightedParts
from agentrl.tools.tool_thread import ToolThread
from agentrl.types import Deadline, Prompt, Turn
from agentrl.user_code import described

logger = logging.getLogger(__name__)

_CLOSE_TIMEOUT_S = 5.0


def isolated_reward(reward: Reward, *, start_timeout_s: float) -> Reward:
    """Return the reward, in a thread of its own if it is user code; weighted parts are treated one by one."""
    if isinstance(reward, WeightedParts):
        return reward.mapped(lambda part: isolated_reward(part, start_timeout_s=start_timeout_s))
    is_ours = type(reward).__module__.partition(".")[0] == "agentrl" and not isinstance(reward, FunctionReward)
    return reward if is_ours else _RewardThread(reward, start_timeout_s)


class _RewardThread:
    """See `Reward`."""

    def __init__(self, reward: Reward, start_timeout_s: float) -> None:
        self._reward = reward
        self._start_timeout_s = start_timeout_s
        self._name = f"reward `{type(reward).__module__}.{type(reward).__qualname__}`"
        self._thread = ToolThread("the reward")

    async def start(self) -> None:
        """See `Reward.start`.

        Raises:
            ConfigError: it raised an unexpected exception, or did not return in time.
        """
        limit = asyncio.timeout(self._start_timeout_s)
        try:
            async with limit:
                [raised] = await asyncio.gather(self._thread.run(self._reward.start()), return_exceptions=True)
            if isinstance(raised, asyncio.CancelledError):
                raise ConfigError(f"{self._name}: cannot be started: `start` cancelled itself")
            if raised is not None:
                raise raised
        except BaseException as error:
            self._thread.close()
            if not isinstance(error, Exception) or isinstance(error, AgentRLError):
                raise
            if limit.expired():
                raise ConfigError(
                    f"{self._name}: `start` did not return in {self._start_timeout_s:g} s. Fix it, or raise "
                    "`rollout.start_timeout_s`"
                ) from error
            raise ConfigError(f"{self._name}: cannot be started: {described(error)}") from error

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
