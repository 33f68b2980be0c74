"""Results of other components about a trajectory, as inputs of training."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """Arrays with one float32 per scored token of a trajectory (its sampled tokens, in order); None if not used.

    Example, a trajectory with two sampled tokens: `TokenInputs(ref_logprobs=np.array([-0.1, -2.3], np.float32))`.
    """

    old_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities of the actor before the update."""
    ref_logprobs: NDArray[np.float32] | None = None
    """Log-probabilities of the reference."""
    values: NDArray[np.float32] | None = None
    """Values of the critic before the update, at each token before it is sampled."""
