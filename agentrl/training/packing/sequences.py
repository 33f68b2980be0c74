"""Inputs of training: sequences of tokens, and results of other components about them."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agentrl.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """Arrays with one float32 per scored token of a trajectory (its sampled tokens, in order); None if not used."""

    old_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities of the actor before the update."""
    ref_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities of the reference."""
    values: NDArray[np.float32] | None = None
    """Values of the critic before the update, at each token before it is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenisedExample:
    """A demonstration. Example: `TokenisedExample(token_ids=[5, 6, 7, 8], response_mask=[0, 0, 1, 1])`."""

    token_ids: list[int]
    response_mask: list[int]
    """1 where the model is to learn the token."""
    experts: bytes = b""


TokenSequence = Trajectory | TokenisedExample


def has_rows(sequence: TokenSequence) -> bool:
    """Return whether a sequence is several dialogues, one behind the other (`Trajectory.row_starts`)."""
    return isinstance(sequence, Trajectory) and bool(sequence.row_starts)


def rows_of(sequence: TokenSequence) -> list[range]:
    """Return the positions of each dialogue of a sequence; most have one."""
    starts = sequence.row_starts if isinstance(sequence, Trajectory) else ()
    return [range(start, stop) for start, stop in pairwise([0, *starts, len(sequence.token_ids)])]
