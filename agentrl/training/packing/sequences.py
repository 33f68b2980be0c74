"""Inputs of training: sequences of tokens, and results of other components about them."""

from dataclasses import dataclass

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
