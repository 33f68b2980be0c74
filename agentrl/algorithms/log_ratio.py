"""Probability ratios that stay finite however far apart two policies are.

Letters in shapes: N scored tokens.
"""

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Bound on log-ratios, as in verl; float32 overflows above e^88."""


def bounded(log_ratio_N: Tensor) -> Tensor:
    """Clamp log-ratios, so that no loss, weight or metric is infinite; clamped ones have no gradient."""
    return log_ratio_N.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
