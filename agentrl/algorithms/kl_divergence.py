"""Estimates of KL(policy || other) at the tokens that the policy sampled (Schulman, "Approximating KL divergence", 2020).

Here `r` is `other / policy`. Letters in shapes: N scored tokens.
"""

from collections.abc import Callable

from torch import Tensor

from agentrl.algorithms.log_ratio import bounded

KlEstimator = Callable[[Tensor, Tensor], Tensor]
"""`(logprobs_N of the policy, other_logprobs_N) -> [N]`, in nats, differentiable in the first; N may be 0. A custom one is
named in the config by its import path.
"""


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
"""Estimators, keyed by their name in the config."""
