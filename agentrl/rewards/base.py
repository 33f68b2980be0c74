"""The `Reward` protocol: a number for a finished trajectory, from sampled text only.

A reward class may also have a static method `check_prompt(prompt)`, which raises `DataError` for a prompt that it can never
score. It is called for every prompt before the start, by `--check` too.
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
        """Return the reward of one trajectory: a number, or a mapping with the number in `score`; other entries are metrics.

        `Turn.text` is the policy's text, without tool results. Episodes that were cut short (turns, tokens, time) are scored
        with `reward.score_unfinished: score` only.

        Raises:
            RolloutError: scoring failed; after the last try the trajectory is an `infra_error`, not a wrong answer. An
                `OSError` means the same.
            DataError: the prompt's data cannot be scored; the trajectory is a `data_error`. Any other exception means the
                same if it is repeated.
        """
        ...

    async def aclose(self) -> None:
        """Close sessions and processes."""
        ...
