"""Reward 1 for a final answer that is mathematically the reference answer, else 0."""

import re
from importlib.util import find_spec
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.errors import ConfigError, DataError
from agentrl.rewards.math_equivalence import EquivalencePool
from agentrl.types import Deadline, Prompt, Turn

MATH_ANSWER_REWARD = "agentrl.rewards.math_answer.MathAnswerReward"

_START_TIMEOUT_S = 60.0
_ANSWER_CLOSE = "</answer>"
_ANSWER_OPEN = "<answer>"
_BOXED = re.compile(r"\\boxed\s*\{")


class MathAnswerConfig(PlainConfig):
    """The keys of `reward.config`."""

    require_answer_tag: bool = True
    r"""Count a `\boxed{}` only inside `<answer>...</answer>`."""
    num_processes: int = Field(default=2, ge=2)
    """Processes that compare answers; with two, one that hangs delays nobody."""
    check_timeout_s: float = Field(default=10.0, gt=0)
    """Wall clock of one comparison; an answer that takes longer is wrong."""


class MathAnswerReward:
    """Compares the last boxed answer of the last turn with `prompt.answer`."""

    def __init__(self, config: dict[str, Any]) -> None:
        """Check the config.

        Raises:
            ConfigError: unknown or wrong keys.
        """
        self._config = read_plain_config(MathAnswerConfig, config, source="`reward.config`")
        self._pool = EquivalencePool(num_processes=self._config.num_processes, timeout_s=self._config.check_timeout_s)

    @property
    def num_given_up(self) -> int:
        """Answers that were called wrong because comparing them hung or crashed."""
        return self._pool.num_given_up

    async def start(self) -> None:
        """Start the processes that compare.

        Raises:
            ConfigError: `math-verify` is not installed.
            RolloutError: the processes do not start.
        """
        if find_spec("math_verify") is None:
            raise ConfigError(f"reward `{MATH_ANSWER_REWARD}`: it needs `math-verify`; install `agentrl[train]`")
        await self._pool.start(deadline=Deadline.after(_START_TIMEOUT_S))

    async def score(self, prompt: Prompt, turns: tuple[Turn, ...], *, deadline: Deadline) -> float:
        """Return 1.0 or 0.0.

        Raises:
            DataError: the prompt has no reference answer.
            RolloutError: the answer could not be compared by the deadline.
        """
        reference = prompt.answer.strip()
        if not reference:
            raise DataError(f"reward: prompt `{prompt.prompt_id}` has no reference answer; check `data.answer_key`")
        answer = final_answer(turns[-1].text if turns else "", require_tag=self._config.require_answer_tag)
        if not answer:
            return 0.0
        if answer == reference:
            return 1.0
        return float(await self._pool.equivalent(reference, answer, deadline=deadline))

    async def aclose(self) -> None:
        """Kill the processes."""
        await self._pool.aclose()


def final_answer(text: str, *, require_tag: bool) -> str:
    r"""Return the content of the last `\boxed{...}` in the last `<answer>` block; empty if there is none.

    >>> final_answer(r"so <answer>\boxed{\frac{1}{2}}</answer>", require_tag=True)
    '\\frac{1}{2}'
    """
    if require_tag:
        end = text.rfind(_ANSWER_CLOSE)
        start = text.rfind(_ANSWER_OPEN, 0, max(0, end))
        if start < 0 or end < 0:
            return ""
        text = text[start + len(_ANSWER_OPEN) : end]
    boxes = list(_BOXED.finditer(text))
    return _balanced(text, boxes[-1].end()) if boxes else ""


def _balanced(text: str, start: int) -> str:
    """Return `text` from `start` up to the brace that closes the one just before it; empty if none does."""
    depth = 1
    for index in range(start, len(text)):
        if text[index] in "{}" and text[index - 1] != "\\":
            depth += 1 if text[index] == "{" else -1
            if depth == 0:
                return text[start:index].strip()
    return ""
