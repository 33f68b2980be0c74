"""Adaptive coefficient of the divergence from the reference; without torch."""

import math

_MAX_ERROR = 0.2
"""Bound on the relative error, so that a single outlier does not upset the coefficient."""


def next_kl_coefficient(
    coefficient: float, *, divergence: float, target: float, num_trajectories: float, horizon: int
) -> float:
    """Return the coefficient of the next step: larger if the policy has moved too far, else smaller.

    The controller of Ziegler et al. (arXiv:1909.08593 sec. 2.2), paced by trajectories: `horizon` of them at the largest error
    scale the coefficient by about e^0.2. A step counts as at most `horizon` trajectories, because a larger one would turn the
    coefficient negative.

    Args:
        coefficient: coefficient of this step.
        divergence: divergence in this step, in nats per trajectory.
        target: target divergence, above 0.
        num_trajectories: number of trajectories in this step.
        horizon: time constant, in trajectories.

    Raises:
        FloatingPointError: the divergence is not finite.
    """
    if not math.isfinite(divergence):
        raise FloatingPointError(f"KL coefficient: the divergence from the reference is {divergence}")
    error = min(max(divergence / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1.0 + error * min(num_trajectories / horizon, 1.0))
