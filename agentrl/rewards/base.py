"""The `Reward` protocol: a number for a finished trajectory, from sampled text only.

A reward class may also have a static method `check_prompt(prompt)`, which raises `DataError` for a prompt that it could never
score. It is asked about every prompt before anything starts, by `--check` too.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from agentrl.types import Deadline, Prompt, Turn


class Reward(Protocol):
    """One instance per agent-loop worker, built by `Class(config: dict)`; the constructor does no I/O."""

    async def start(self) -> None:
        """Open sessions or processes; raise `ConfigError` if the reward cannot work."""
        ...

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float | Mapping[str, Any]:
        """Return the reward of one trajectory: a number, or a mapping with the number in `score`, whose others become metrics.

        `turns` hold what the policy wrote (`text`), tool results apart. Episodes that were cut short (turns, tokens, time) are
        asked about with `reward.score_unfinished: score` alone.

        Raises:
            RolloutError: it could not be scored; after the last try the trajectory is an `infra_error`, not a wrong answer.
                An `OSError` means the same.
            DataError: it can never be, because of what the prompt holds; the trajectory is a `data_error`. Any other exception
                means the same, where it comes a second time.
        """
        ...

    async def aclose(self) -> None:
        """Close them again."""
        ...
