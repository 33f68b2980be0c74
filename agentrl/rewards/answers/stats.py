"""Counters of answer checks, as plain data for the driver."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerStats:
    """Counts since the last call; `+` adds those of several workers.

    Example: `AnswerStats(num_scored=16, num_missing=16, examples=("prompt `p`: nothing found: ...",))`.
    """

    num_scored: int = 0
    """Finished trajectories that were scored."""
    num_missing: int = 0
    """Scored trajectories without an answer."""
    num_given_up: int = 0
    """Answers scored as wrong because the comparison took too long or crashed."""
    examples: tuple[str, ...] = ()
    """One line for each of the first scored trajectories."""

    def __add__(self, other: "AnswerStats") -> "AnswerStats":
        return AnswerStats(
            num_scored=self.num_scored + other.num_scored,
            num_missing=self.num_missing + other.num_missing,
            num_given_up=self.num_given_up + other.num_given_up,
            examples=self.examples + other.examples,
        )
