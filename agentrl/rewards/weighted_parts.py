"""A weighted sum of several rewards, with every score as a metric."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentrl.errors import AgentRLError, UnexplainedError
from agentrl.judge.stats import JudgeStats
from agentrl.rewards.answers.stats import AnswerStats
from agentrl.rewards.base import Reward
from agentrl.rewards.score import SCORE_KEY, Score, read_score
from agentrl.types import Deadline, Prompt, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """A reward, its name in the metrics, and its weight."""

    name: str
    weight: float
    reward: Reward


class WeightedParts:
    """Scores a trajectory with all parts at once.

    A part that returns None does not apply to this trajectory: it adds nothing, and has no metric. Other numbers of a part's
    mapping are metrics named `PART/NAME`.
    """

    def __init__(self, parts: Sequence[RewardPart]) -> None:
        """Take the parts, not started yet."""
        self._parts = list(parts)

    def mapped(self, function: Callable[[Reward], Reward]) -> "WeightedParts":
        """Return the same with `function` applied to the reward of every part."""
        return WeightedParts([replace(part, reward=function(part.reward)) for part in self._parts])

    async def start(self) -> None:
        """Start every part; those already started are closed if one cannot start."""
        started: list[Reward] = []
        try:
            for part in self._parts:
                await part.reward.start()
                started.append(part.reward)
        except BaseException:
            for reward in started:
                await reward.aclose()
            raise

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> dict[str, float]:
        """Return the sum as `score`, and the breakdown.

        Raises:
            UnexplainedError: a part raised an unexpected exception, returned no number, or no part applies.
        """
        tasks = [asyncio.create_task(self._ask(part, prompt, turns, deadline)) for part in self._parts]
        try:
            scores = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        known = [(part, score) for part, score in zip(self._parts, scores, strict=True) if score is not None]
        if not known:
            raise UnexplainedError(f"reward of prompt `{prompt.prompt_id}`: every part is None", cause="no number")
        breakdown: dict[str, float] = {}
        for part, score in known:
            breakdown[part.name] = score.value
            breakdown |= {f"{part.name}/{name}": number for name, number in score.metrics.items()}
        return breakdown | {SCORE_KEY: sum(part.weight * score.value for part, score in known)}

    async def aclose(self) -> None:
        """Close every part."""
        for part in self._parts:
            await part.reward.aclose()

    def take_judge_stats(self) -> JudgeStats:
        """Return the counts of the parts' judge clients since the last call."""
        clients: list[Any] = [part.reward for part in self._parts if hasattr(part.reward, "take_judge_stats")]
        return sum((client.take_judge_stats() for client in clients), JudgeStats())

    def take_answer_stats(self) -> AnswerStats:
        """Return the counts of the parts' answer checks since the last call."""
        checks: list[Any] = [part.reward for part in self._parts if hasattr(part.reward, "take_answer_stats")]
        return sum((check.take_answer_stats() for check in checks), AnswerStats())

    async def _ask(self, part: RewardPart, prompt: Prompt, turns: tuple[Turn, ...], deadline: Deadline) -> Score | None:
        where = f"reward part `{part.name}` of prompt `{prompt.prompt_id}`"
        try:
            returned = await part.reward.score(prompt, turns, deadline=deadline)
        except (AgentRLError, OSError):
            raise
        except Exception as error:
            # A part of the user's may raise anything.
            raise UnexplainedError.of(where, error) from error
        return None if returned is None else read_score(returned, where=where)
