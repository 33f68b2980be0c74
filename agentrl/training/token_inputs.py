"""What other components have computed about a trajectory before it is trained on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenInputs:
    """One number per scored token of one trajectory (its sampled tokens, in order), float32; what is absent is not used.

    Example, of a trajectory with two sampled tokens: `TokenInputs(ref_logprobs=np.array([-0.1, -2.3], np.float32))`.
    """

    old_logprobs: NDArray[np.float32] | None = None
    """Of the actor before the update."""
    ref_logprobs: NDArray[np.float32] | None = None
    """Of the reference."""
    values: NDArray[np.float32] | None = None
    """Of the critic before the update: what it expects before each token is sampled."""
