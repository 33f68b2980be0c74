"""KL divergence from the reference: its estimators at sampled tokens, and the adaptive coefficient.

Estimators: Schulman, "Approximating KL divergence", 2020; `r` is `other / policy`. Letters in shapes: N scored tokens.
"""

import math
from collections.abc import Callable

from torch import Tensor

KlEstimator = Callable[[Tensor, Tensor], Tensor]
"""`(logprobs_N of the policy, other_logprobs_N) -> [N]`, in nats, differentiable in the first; N may be 0. A custom one is
named in the config by its import path.
"""
_MAX_LOG_RATIO = 20.0
"""Bound on log-ratios, as in verl; float32 overflows above e^88."""
_MAX_ERROR = 0.2
"""Bound on the relative error, so that a single outlier does not upset the coefficient."""
_HORIZON = 10_000
"""Trajectories over which the coefficient changes by at most a factor of about e^0.2, as in the code of arXiv:1909.08593."""


def bounded(log_ratio_N: Tensor) -> Tensor:
    """Clamp log-ratios, so that no loss, weight or metric is infinite; clamped ones have no gradient."""
    return log_ratio_N.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)


def k1(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return `-log r`: unbiased and noisy; the mean of its gradient is 0."""
    return -(other_logprobs_N - logprobs_N)


def k2(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return `(log r)^2 / 2`: biased, but the mean of its gradient is that of the divergence."""
    return (other_logprobs_N - logprobs_N).square() / 2


def k3(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Return `r - 1 - log r`: unbiased and never negative (GRPO, arXiv:2402.03300 eq. 4), with `log r` between -20 and 20."""
    log_ratio_N = bounded(other_logprobs_N - logprobs_N)
    return log_ratio_N.exp() - 1.0 - log_ratio_N


KL_ESTIMATORS: dict[str, KlEstimator] = {"k1": k1, "k2": k2, "k3": k3}


def next_kl_coefficient(
    coefficient: float, *, divergence: float, target: float, num_trajectories: float, horizon: int = _HORIZON
) -> float:
    """Return the coefficient of the next step: larger if the policy has moved too far, else smaller.

    The controller of Ziegler et al. (arXiv:1909.08593 sec. 2.2), paced by trajectories: `horizon` of them at the largest error
    scale the coefficient by about e^0.2. A step counts as at most `horizon` trajectories, because a larger one would turn the
    coefficient negative. `divergence` and its `target` are in nats per trajectory.

    Raises:
        FloatingPointError: the divergence is not finite.
    """
    if not math.isfinite(divergence):
        raise FloatingPointError(f"KL coefficient: the divergence from the reference is {divergence}")
    error = min(max(divergence / target - 1.0, -_MAX_ERROR), _MAX_ERROR)
    return coefficient * (1.0 + error * min(num_trajectories / horizon, 1.0))
