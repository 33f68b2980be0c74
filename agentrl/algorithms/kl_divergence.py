"""Estimates of the divergence of two policies on the tokens that one of them sampled.

Letters in shapes: N scored tokens.
"""

from typing import Literal

from torch import Tensor

from agentrl.algorithms.log_ratio import bounded

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(logprobs_N: Tensor, other_logprobs_N: Tensor, estimator: KlEstimator) -> Tensor:
    """Estimate KL(policy || other) at each token that the policy sampled (Schulman, "Approximating KL divergence", 2020).

    With `r = other / policy`: `k1 = -log r` is unbiased and noisy; `k2 = (log r)^2 / 2` is biased, and its gradient is that of
    the divergence; `k3 = r - 1 - log r` is unbiased and never negative (GRPO, arXiv:2402.03300 eq. 4), with `log r` between
    -20 and 20.

    Returns:
        `[N]`, differentiable in `logprobs_N`.
    """
    log_ratio_N = other_logprobs_N - logprobs_N
    match estimator:
        case "k1":
            return -log_ratio_N
        case "k2":
            return log_ratio_N.square() / 2
        case "k3":
            bounded_N = bounded(log_ratio_N)
            return bounded_N.exp() - 1.0 - bounded_N
