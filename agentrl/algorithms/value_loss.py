"""The critic's loss per token. Letters in shapes: N scored tokens."""

import torch
from torch import Tensor


def value_loss(values_N: Tensor, old_values_N: Tensor, returns_N: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """Return half the squared error, clipped where a value moved too far (reference code of PPO, arXiv:1707.06347).

    `old_values_N` are those before the update, without gradient; `clip` limits the movement of a value in one step, 0: not.

    Returns:
        `[N]`, differentiable, and a bool `[N]`: tokens whose gradient the clipping removed.
    """
    plain_N = (values_N - returns_N).square()
    if not clip:
        return plain_N / 2, torch.zeros_like(plain_N, dtype=torch.bool)
    moved_N = values_N - old_values_N
    bounded_N = old_values_N + moved_N.clamp(-clip, clip)
    clipped_N = (bounded_N - returns_N).square()
    # The two differ by rounding even where nothing is clamped.
    is_clipped_N = (moved_N.abs() > clip) & (clipped_N > plain_N)
    return torch.maximum(plain_N, clipped_N) / 2, is_clipped_N
