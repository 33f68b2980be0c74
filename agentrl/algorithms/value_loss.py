"""The critic's loss per token.

Letters in shapes: N scored tokens.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueLoss:
    """The loss of some tokens, and what is reported of it."""

    loss_N: Tensor
    """Differentiable."""
    clipped_N: Tensor
    """bool: tokens whose gradient the clipping removed."""


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float) -> ValueLoss:
    """Halve the squared error, and leave values that moved too far alone (as the reference code of PPO does, arXiv:1707.06347).

    Args:
        values_N: of the current forward pass.
        old_values_N: of the critic before the update, without gradient.
        returns_N: what they should have been.
        clip: how far values may move in one step, in units of the reward; 0 sets no bound.
    """
    plain_N = (values_N - returns_N).square()
    if not clip:
        return ValueLoss(loss_N=plain_N / 2, clipped_N=torch.zeros_like(plain_N, dtype=torch.bool))
    moved_N = values_N - old_values_N
    bounded_N = old_values_N + moved_N.clamp(-clip, clip)
    clipped_N = (bounded_N - returns_N).square()
    # Where nothing is bounded, the two still differ by rounding.
    is_clipped_N = (moved_N.abs() > clip) & (clipped_N > plain_N)
    return ValueLoss(loss_N=torch.maximum(plain_N, clipped_N) / 2, clipped_N=is_clipped_N)
