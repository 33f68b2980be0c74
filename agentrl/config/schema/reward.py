"""The section `reward`: the reward of finished trajectories."""

from typing import Any, Literal

from pydantic import Field

from agentrl.config.schema.algorithm import RewardModelSection
from agentrl.config.schema.fields import AmountOrZero, Number, Seconds, Section, resumable

AnswerFormat = Literal["auto", "boxed", "tagged", "hashes", "last_number"]
"""Values of `reward.answer_format`."""


class RewardPartSection(Section):
    """One of several rewards: a class or a function, with its own config."""

    name: str
    """Name of its score among the metrics: `reward/NAME`."""
    class_name: str | None = None
    """Import path of a reward class; this or `function`."""
    function: str | None = None
    """Import path of a function; this or `class_name`."""
    config: dict[str, Any] = {}
    """Passed to the class's constructor, or to the function as keyword arguments."""
    weight: Number = 1.0
    """Factor of its score in the sum; 0 only measures it."""


class RewardSection(Section):
    """The reward, which scores a finished trajectory."""

    class_name: str = "agentrl.rewards.math_answer.MathAnswerReward"
    """Import path of the reward class."""
    function: str | None = None
    """Import path of a function in its place: `fn(prompt, turns)`, verl's `compute_score`, or a reward function of TRL."""
    config: dict[str, Any] = {}
    """Passed to the class's constructor as plain data, or to the function as keyword arguments."""
    parts: list[RewardPartSection] = []
    """Several rewards instead of one; the reward is the sum of their scores times their weights."""
    answer_format: AnswerFormat = "auto"
    r"""Place of the final answer for the math reward: `auto` reads the format that each prompt asks for, `boxed` the last
    `\boxed{}`, `tagged` the last `<answer>` block, `hashes` the text after `####`, `last_number` the last number.
    """
    # Resumable, because a run under `zero` ends at its first negative reward.
    score_unfinished: Literal["zero", "score", "mask"] = resumable("zero")
    """Treatment of trajectories that reach the limit of turns, tokens or time: `zero` gives them 0, as in the paper; `score`
    scores them as they are; `mask` gives 0 and excludes them from the loss and from their group's baseline.
    """
    weight: AmountOrZero = 1.0
    """Factor of the reward when a reward model adds to it; 0 trains on the reward model alone."""
    timeout_s: Seconds = resumable(30.0)
    """Time limit for scoring one trajectory, in seconds."""
    model: RewardModelSection = Field(default_factory=RewardModelSection)
    """A reward model, in addition to the reward or instead of it."""

    @property
    def scorers(self) -> list[RewardPartSection]:
        """The parts; a single reward is one part without a name."""
        if self.parts:
            return self.parts
        class_name = None if self.function else self.class_name
        return [RewardPartSection(name="", class_name=class_name, function=self.function, config=self.config)]

    @property
    def label(self) -> str:
        """Name of the reward in messages: the import paths of what scores."""
        return ", ".join(scorer.function or scorer.class_name or "" for scorer in self.scorers)
