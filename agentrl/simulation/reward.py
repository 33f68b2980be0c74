"""A reward for simulations: a hash of the text decides which share of the trajectories is right."""

import hashlib
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.types import Deadline, Prompt, Turn

SIMULATED_REWARD = "agentrl.simulation.reward.SimulatedReward"


class SimulatedRewardConfig(PlainConfig):
    """The keys of the reward."""

    accuracy: float = Field(default=0.5, ge=0, le=1)
    """Share of the trajectories that are right."""


class SimulatedReward:
    """See `Reward`."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._settings = read_plain_config(SimulatedRewardConfig, config, source=f"reward `{SIMULATED_REWARD}`")

    async def start(self) -> None:
        """See `Reward.start`."""

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        """See `Reward.score`."""
        digest = hashlib.blake2b("".join([prompt.prompt_id, *(turn.text for turn in turns)]).encode(), digest_size=4)
        return float(int.from_bytes(digest.digest(), "big") < self._settings.accuracy * 2**32)

    async def aclose(self) -> None:
        """See `Reward.aclose`."""
