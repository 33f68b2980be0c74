"""Policy losses per token, from log-probabilities and advantages.

The caller weighs the losses (`aggregation`) and sums them. Letters in shapes: N scored tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from agentrl.algorithms.aggregation import trajectory_means
from agentrl.algorithms.kl_divergence import bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipRange:
    """Limits on the policy's movement in one step, as probability ratios."""

    low: float
    """Ratios below `1 - low` are clipped."""
    high: float
    """Ratios above `1 + high` are clipped."""
    dual: float = 0.0
    """Ratio above which the loss stops growing if the advantage is negative; 0: no such bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """Losses of tokens (differentiable), with the values that are reported."""

    loss_N: Tensor
    ratio_N: Tensor
    """Probability ratios, without gradient, between e^-20 and e^20."""
    clipped_low_N: Tensor
    """bool: tokens whose gradient the lower bound removed, wholly or in part."""
    clipped_high_N: Tensor
    """bool: the same for the upper bound; no token is clipped twice."""
    clipped_dual_N: Tensor | None = None
    """bool: the same for the dual clip; None if it is off."""

    @property
    def clipped_N(self) -> Tensor:
        """bool: tokens that any of the bounds clipped."""
        clipped_N = self.clipped_low_N | self.clipped_high_N
        return clipped_N if self.clipped_dual_N is None else clipped_N | self.clipped_dual_N


PolicyLossFunction = Callable[[Tensor, Tensor, Tensor, Tensor, ClipRange], PolicyLoss]
"""`(logprobs_N, old_logprobs_N, advantages_N, trajectory_N, clip)`; a custom one is named in the config by its import path.

`logprobs_N` are those of the current forward pass, `old_logprobs_N` those of the actor before the update, without gradient;
`trajectory_N` numbers each token's trajectory, from 0.
"""


def ppo_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
) -> PolicyLoss:
    """Clip the ratio of each token (PPO, arXiv:1707.06347 eq. 7; clip-higher, DAPO, arXiv:2503.14476 eq. 10)."""
    return _clipped(bounded(logprobs_N - old_logprobs_N).exp(), advantages_N, clip)


def gspo_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
) -> PolicyLoss:
    """Clip one ratio per trajectory, the geometric mean of its tokens' (GSPO, arXiv:2507.18071 eq. 5 to 7).

    These ratios are much closer to 1 than those of tokens, so the clip range must be narrower (paper: 3e-4 and 4e-4). The paper
    uses `algorithm.aggregation: trajectory_mean`.
    """
    log_ratio_N = trajectory_means(logprobs_N - old_logprobs_N, trajectory_N)
    return _clipped(bounded(log_ratio_N).exp(), advantages_N, clip)


def cispo_loss(
    logprobs_N: Tensor, old_logprobs_N: Tensor, advantages_N: Tensor, trajectory_N: Tensor, clip: ClipRange, /
) -> PolicyLoss:
    """Clip the weight of a token, not its gradient (CISPO, MiniMax-M1, arXiv:2506.13585 eq. 4 and 5)."""
    ratio_N = bounded(logprobs_N - old_logprobs_N).exp().detach()
    weight_N = ratio_N.clamp(1.0 - clip.low, 1.0 + clip.high)
    has_gradient_N = advantages_N != 0
    return PolicyLoss(
        loss_N=-weight_N * advantages_N * logprobs_N,
        ratio_N=ratio_N,
        clipped_low_N=has_gradient_N & (weight_N > ratio_N),
        clipped_high_N=has_gradient_N & (weight_N < ratio_N),
    )


POLICY_LOSSES: dict[str, PolicyLossFunction] = {"ppo": ppo_loss, "gspo": gspo_loss, "cispo": cispo_loss}


def _clipped(ratio_N: Tensor, advantages_N: Tensor, clip: ClipRange) -> PolicyLoss:
    plain_N = -advantages_N * ratio_N
    bounded_N = ratio_N.clamp(1.0 - clip.low, 1.0 + clip.high)
    clipped_N = -advantages_N * bounded_N
    loss_N = torch.maximum(plain_N, clipped_N)
    was_clipped_N = clipped_N > plain_N
    was_stopped_N = None
    if clip.dual:
        # Dual-clip PPO, arXiv:1912.09729 eq. 5.
        most_N = torch.where(advantages_N < 0, -advantages_N * clip.dual, torch.inf)
        was_stopped_N = loss_N > most_N
        loss_N = torch.minimum(loss_N, most_N)
    return PolicyLoss(
        loss_N=loss_N,
        ratio_N=ratio_N.detach(),
        clipped_low_N=was_clipped_N & (bounded_N > ratio_N),
        clipped_high_N=was_clipped_N & (bounded_N < ratio_N),
        clipped_dual_N=was_stopped_N,
    )
