"""Reward 1 for a final answer that equals the reference answer mathematically, else 0."""

import math
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema.reward import AnswerFormat
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.answers.comparison import equal_by_text
from agentrl.rewards.answers.equivalence import EquivalencePool
from agentrl.rewards.answers.format import FoundAnswer, find_answer, last_boxed
from agentrl.types import Deadline, Prompt, Turn

MATH_ANSWER_REWARD = "agentrl.rewards.math_answer.MathAnswerReward"

_START_TIMEOUT_S = 60.0
_NUM_EXAMPLES = 3
_SHOWN_CHARS = 80


class MathAnswerConfig(PlainConfig):
    """The keys of `reward.config`."""

    num_processes: int = Field(default=2, ge=2)
    """Answers compared at once, each in its own process; slow ones never take the last slot."""
    check_timeout_s: float = Field(default=5.0, gt=0)
    """CPU time of one comparison; an answer that takes longer is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats:
    """Counts of answer checks since the last call; `+` adds those of several workers."""

    num_scored: int = 0
    """Finished trajectories that were scored."""
    num_missing: int = 0
    """Scored trajectories without an answer."""
    num_given_up: int = 0
    """Answers scored as wrong because the comparison took too long or crashed."""
    examples: tuple[str, ...] = ()
    """One line for each of the first scored trajectories."""

    def __add__(self, other: "AnswerStats") -> "AnswerStats":
        return AnswerStats(**{name: getattr(self, name) + getattr(other, name) for name in self.__slots__})


class MathAnswerReward:
    """Compares the final answer of the last turn with `prompt.answer`."""

    def __init__(self, config: dict[str, Any], *, answer_format: AnswerFormat = "auto") -> None:
        """Raise ConfigError for unknown or wrong keys; `answer_format` is `reward.answer_format`."""
        self._config = read_plain_config(MathAnswerConfig, config, source="`reward.config`")
        self._format: AnswerFormat = answer_format
        self._pool = EquivalencePool(num_processes=self._config.num_processes, timeout_s=self._config.check_timeout_s)
        self._stats = AnswerStats()
        self._num_shown = 0

    def take_answer_stats(self) -> AnswerStats:
        """Return the counts since the last call."""
        taken, self._stats = self._stats, AnswerStats()
        return taken + AnswerStats(num_given_up=self._pool.take_num_given_up())

    async def start(self) -> None:
        """Start the processes of the comparisons; ConfigError without `math-verify`, RolloutError if they do not start."""
        if find_spec("math_verify") is None:
            raise ConfigError(f"reward `{MATH_ANSWER_REWARD}`: it needs `math-verify`; install `agentrl[train]`")
        await self._pool.start(deadline=Deadline.after(_START_TIMEOUT_S))

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        """Return 1.0 or 0.0; raises as `reference_answer` and `EquivalencePool.equivalent`."""
        reference = reference_answer(prompt)
        answer = final_answer(prompt, turns, self._format)
        reward = await self._compare(reference, answer.text, deadline)
        self._count(prompt, reference, answer, reward)
        return reward

    @staticmethod
    def check_prompt(prompt: Prompt) -> None:
        """See `agentrl.rewards.base`."""
        reference_answer(prompt)

    async def aclose(self) -> None:
        """Kill the processes."""
        await self._pool.aclose()

    async def _compare(self, reference: str, answer: str, deadline: Deadline) -> float:
        if not answer:
            return 0.0
        if (is_equal := equal_by_text(reference, answer)) is not None:
            return float(is_equal)
        return float(await self._pool.equivalent(reference, answer, deadline=deadline))

    def _count(self, prompt: Prompt, reference: str, answer: FoundAnswer, reward: float) -> None:
        examples: tuple[str, ...] = ()
        if self._num_shown < _NUM_EXAMPLES:
            self._num_shown += 1
            shown = f"answer {_shown(answer.text)}" if answer.text else f"nothing found: {answer.problem}"
            examples = (f"prompt `{prompt.prompt_id}`: {shown}, reference {_shown(reference)}, score {reward:g}",)
        self._stats += AnswerStats(num_scored=1, num_missing=int(not answer.text), examples=examples)


def final_answer(prompt: Prompt, turns: tuple[Turn, ...], answer_format: AnswerFormat) -> FoundAnswer:
    """Return the final answer of a trajectory, as the reward reads it; raises as `reference_answer`."""
    text = turns[-1].text if turns else ""
    return find_answer(text, prompt.messages, answer_format, reference=reference_answer(prompt))


def reference_answer(prompt: Prompt) -> str:
    r"""Return the reference answer as text; from a whole solution the part after `####` (GSM8K) or in `\boxed{}` (MATH).

    Raises:
        DataError: there is none, or it is neither text nor a finite number.
    """
    answer: Any = prompt.answer
    if isinstance(answer, int | float) and not isinstance(answer, bool) and math.isfinite(answer):
        answer = repr(answer)
    elif answer is not None and not isinstance(answer, str):
        raise DataError(
            f"reward: the reference answer of prompt `{prompt.prompt_id}` is {answer!r:.100}; the math reward takes text or a "
            "number. Name the column that holds it in `data.answer_key`, dots enter a struct"
        )
    text = (answer or "").strip()
    if "####" in text:
        text = text.rpartition("####")[2].strip()
    elif (boxed := last_boxed(text)) is not None:
        text = boxed
    if not text:
        raise DataError(f"reward: prompt `{prompt.prompt_id}` has no reference answer; check `data.answer_key`")
    return text


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...")
