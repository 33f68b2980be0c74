"""The clipped policy loss, and the divergence of two policies on the tokens that one of them sampled.

All functions are over scored tokens, whatever trajectory they are of; sums are divided by the caller, who knows how many
tokens the whole update has. Letters in shapes: N scored tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss over some tokens, and what is reported of it."""

    loss_sum: Tensor
    """`[]`, differentiable."""
    num_clipped: Tensor
    """`[]`: tokens whose gradient the clipping removed."""
    ratio_max: Tensor
    """`[]`: greatest probability ratio; 0 where there are no tokens."""


def clipped_policy_loss(
    logprobs_N: Tensor,
    old_logprobs_N: Tensor,
    advantages_N: Tensor,
    *,
    weights_N: Tensor | None = None,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """Sum the clipped surrogate over tokens (PPO, arXiv:1707.06347 eq. 7; clip-higher, DAPO, arXiv:2503.14476 eq. 10).

    Args:
        logprobs_N: of the current forward pass.
        old_logprobs_N: of the actor before the update, without gradient.
        advantages_N: the trajectory's advantage, at each of its tokens.
        weights_N: importance weights (`rollout_weights`), not negative; absent: 1.
        clip_low: ratios below `1 - clip_low` are clipped.
        clip_high: ratios above `1 + clip_high` are clipped.
    """
    ratio_N = (logprobs_N - old_logprobs_N).exp()
    plain_N = -advantages_N * ratio_N
    clipped_N = -advantages_N * ratio_N.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss_N = torch.maximum(plain_N, clipped_N)
    return PolicyLoss(
        loss_sum=(loss_N if weights_N is None else weights_N * loss_N).sum(),
        num_clipped=(clipped_N > plain_N).sum(),
        ratio_max=max_or_zero(ratio_N.detach()),
    )


def kl_k3(logprobs_N: Tensor, other_logprobs_N: Tensor) -> Tensor:
    """Estimate KL(policy || other) at each token that the policy sampled: `r - 1 - log r`, `r = other / policy`.

    Unbiased and never negative (Schulman, "Approximating KL divergence", 2020; GRPO, arXiv:2402.03300 eq. 4).

    Returns:
        `[N]`, differentiable in `logprobs_N`.
    """
    log_ratio_N = other_logprobs_N - logprobs_N
    return log_ratio_N.exp() - 1.0 - log_ratio_N


def max_or_zero(values_N: Tensor) -> Tensor:
    """Return the greatest value, `[]`; 0 where there are none."""
    return values_N.max() if values_N.numel() else values_N.new_zeros(())
