"""The base of environments, and what they answer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentrl.tools.base import Episode
from agentrl.types import Deadline, Prompt, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Answer of an environment to one turn: the policy reads `text` as a user's message and goes on, unless it is `done`.

    Example: `Observation(text="higher", reward=-0.1)`, and in the end `Observation(text="right", reward=1.0, done=True)`.
    """

    text: str
    reward: float | None = None
    """Reward of the turn; rewards read it as `Turn.environment_reward`."""
    done: bool = False
    """True ends the episode; the text is then only recorded."""


class Environment:
    """Answers turns without a tool call; one instance per worker serves many episodes at once.

    Subclasses need `observe`. All methods run on one event loop in a separate thread, so that blocking code delays no tool.
    State of an episode is keyed by `episode.episode_id`, which a tool of the same worker gets too; `random.Random` seeded with
    it draws the same numbers in a resumed run. The trajectories of a prompt are compared with each other, so what makes an
    episode easy or hard belongs to the prompt.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Take `agent_loop.environment_config`; no I/O."""
        self.config = config

    async def start(self) -> None:
        """Open sessions; raise `ConfigError` if the environment cannot work."""

    async def begin(self, episode: Episode, prompt: Prompt) -> str | None:
        """Begin an episode; a text is added to the prompt's last message of a user, or follows as a message of its own."""
        return None

    async def observe(
        self, episode: Episode, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline
    ) -> Observation:
        """Answer the last of the turns, which calls no tool; earlier ones have their tool results and observations.

        Raises:
            RolloutError: a service that the environment needs failed; an `OSError` means the same.
            DataError: the prompt's data cannot be used. Any other exception means the same if it is repeated.
        """
        raise NotImplementedError

    async def end(self, episode: Episode) -> None:
        """Free the state of an episode; called once for each, however it ended, also where `begin` failed."""

    async def aclose(self) -> None:
        """Close the sessions."""
