"""Ratios of probabilities that stay finite, however far apart two policies are on a token.

Letters in shapes: N scored tokens.
"""

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Ratios stop at e^20 and e^-20, as verl's do; beyond, in float32, they overflow from e^89 on."""


def bounded(log_ratio_N: Tensor) -> Tensor:
    """Stop log-ratios at the bound, beyond which they have no gradient, so that no loss, weight or metric is infinite."""
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
