"""Asks the reward about one trajectory: it may be anybody's code, and must not hold up or end a run."""

import asyncio
import math
from typing import Any

from agentrl.config.schema import RewardSection
from agentrl.errors import AgentRLError, ConfigError, RolloutError, UnexplainedError
from agentrl.rewards.base import Reward
from agentrl.types import Deadline, Prompt, Turn

_GRACE_S = 1.0
"""How long a reward that watches its own deadline has to say so in its own words, before it is cut off."""


async def score(reward: Reward, section: RewardSection, prompt: Prompt, turns: tuple[Turn, ...]) -> float:
    """Return the reward of a finished trajectory, 0 or more.

    Raises:
        RolloutError: no answer in time, or what the reward needs is away.
        DataError: the prompt cannot be scored, or the reward raised what it does not explain, or gave no number.
        ConfigError: the reward is negative.
    """
    where = f"reward of prompt `{prompt.prompt_id}`"
    task = asyncio.create_task(reward.score(prompt, turns, deadline=Deadline.after(section.timeout_s)))
    try:
        # Not `timeout`: that waits until the reward has honoured the cancellation, which a broken one may never do.
        await asyncio.wait({task}, timeout=section.timeout_s + _GRACE_S)
    finally:
        task.cancel()
    if not task.done() or task.cancelled():
        raise RolloutError(f"{where}: no answer in {section.timeout_s:g} s")
    try:
        value = task.result()
    except AgentRLError:
        raise
    except OSError as error:
        raise RolloutError(f"{where}: {type(error).__name__}: {error}") from error
    except Exception as error:
        raise UnexplainedError.of(where, error) from error
    number = _as_number(value)
    if not math.isfinite(number):
        raise UnexplainedError(f"{where} is {value!r:.100}, and must be a finite number", cause="no number")
    if number < 0:  # a trajectory cut short, which gets 0, would beat a wrong answer
        raise ConfigError(f"reward.class_name: `{section.class_name}` gave {number:g} for `{prompt.prompt_id}`")
    return number


def _as_number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
