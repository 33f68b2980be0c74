"""The coefficient of the divergence from the reference, held near a target. Without torch: the driver keeps it."""

import math

_MAX_ERROR = 0.2
"""Relative errors beyond this count as this, so that one step far off does not throw the coefficient."""


def next_kl_coefficient(
    coefficient: float, *, divergence: float, target: float, num_trajectories: float, horizon: int
) -> float:
    """Return the coefficient of the next step: greater where the policy has moved too far, else smaller.

    The controller of Ziegler et al. (arXiv:1909.08593 sec. 2.2), with their number of samples in the place of their constant:
    after `horizon` trajectories at the greatest error, it is about e^0.2 times what it was. One step counts as no more than
    `horizon` trajectories: a large one would turn the coefficient negative, and reward the distance.

    Args:
        coefficient: of the step that was made.
        divergence: of its trajectories, in nats per trajectory.
        target: what that should be, above 0.
        num_trajectories: how many they were.
        horizon: the greater, the slower.

    Raises:
        FloatingPointError: the divergence is not finite.
    """
    if not math.isfinite(divergence):
        raise FloatingPointError(f"KL coefficient: the divergence from the reference is {divergence}")
    error = min(max(divergence / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1.0 + error * min(num_trajectories / horizon, 1.0))
