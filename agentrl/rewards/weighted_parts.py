"""A weighted sum of several rewards, with every score as a metric."""

from collections.abc import Callable, Sequence
from typing import Any

from agentrl.config.schema.reward import RewardPartSection
from agentrl.errors import AgentRLError, UnexplainedError
from agentrl.judge.stats import JudgeStats
from agentrl.rewards.base import Reward
from agentrl.rewards.math_answer import AnswerStats
from agentrl.rewards.score import SCORE_KEY, Score, read_score
from agentrl.types import Deadline, Prompt, Turn
from agentrl.user_code import gathered


class WeightedParts:
    """Scores a trajectory with all parts at once.

    A part that returns None does not apply to this trajectory: it adds nothing, and has no metric. Other numbers of a part's
    mapping are metrics named `PART/NAME`.
    """

    def __init__(self, parts: Sequence[RewardPartSection], rewards: Sequence[Reward]) -> None:
        """Take names and weights, and the rewards in the same order, not started yet."""
        self._parts = list(parts)
        self._rewards = list(rewards)

    def mapped(self, function: Callable[[Reward], Reward]) -> "WeightedParts":
        """Return the same with `function` applied to the reward of every part."""
        return WeightedParts(self._parts, [function(reward) for reward in self._rewards])

    async def start(self) -> None:
        """Start every part."""
        for reward in self._rewards:
            await reward.start()

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> dict[str, float]:
        """Return the sum as `score`, and the breakdown; UnexplainedError if a part fails, or none applies."""

        async def ask(part: RewardPartSection, reward: Reward) -> Score | None:
            where = f"reward part `{part.name}` of prompt `{prompt.prompt_id}`"
            try:
                returned = await reward.score(prompt, turns, deadline=deadline)
            except (AgentRLError, OSError):
                raise
            except Exception as error:  # user code may raise anything
                raise UnexplainedError.of(where, error) from error
            return None if returned is None else read_score(returned, where=where)

        scores = await gathered(ask(*pair) for pair in zip(self._parts, self._rewards, strict=True))
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
        for reward in self._rewards:
            await reward.aclose()

    def take_judge_stats(self) -> JudgeStats:
        """Return the counts of the parts' judge clients since the last call."""
        clients: list[Any] = [reward for reward in self._rewards if hasattr(reward, "take_judge_stats")]
        return sum((client.take_judge_stats() for client in clients), JudgeStats())

    def take_answer_stats(self) -> AnswerStats:
        """Return the counts of the parts' answer checks since the last call."""
        checks: list[Any] = [reward for reward in self._rewards if hasattr(reward, "take_answer_stats")]
        return sum((check.take_answer_stats() for check in checks), AnswerStats())
