"""From the losses of tokens to the loss of a batch: what each token counts.

Letters in shapes: N scored tokens.
"""

from typing import Literal

import torch
from torch import Tensor


def aggregation_weights(
    trajectory_N: Tensor,
    *,
    method: Literal["trajectory_mean", "fixed_length"],
    mean_length: float,
    max_length: int,
) -> Tensor:
    """Return what tokens count beside their mean over the batch, in which long trajectories count for more.

    Args:
        trajectory_N: number of the trajectory that each token is of, from 0, all of its tokens at once.
        method: `trajectory_mean` gives every trajectory the same weight, which its tokens share (GRPO, arXiv:2402.03300 eq. 3);
            `fixed_length` divides by the longest that a response may be, so that length changes nothing (Dr. GRPO,
            arXiv:2503.20783 sec. 3.2).
        mean_length: scored tokens per trajectory in the whole batch, over all ranks.
        max_length: of a response, for `fixed_length`.

    Returns:
        `[N]`; the mean over the batch of `weight x loss` is the loss of the batch.
    """
    if method == "fixed_length":
        return torch.full_like(trajectory_N, mean_length / max_length, dtype=torch.float32)
    return mean_length / trajectory_N.bincount()[trajectory_N]


def trajectory_means(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Give each token the mean over its trajectory."""
    return trajectory_sums(values_N, trajectory_N) / trajectory_N.bincount()[trajectory_N]


def trajectory_sums(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Give each token the sum over its trajectory."""
    if not len(values_N):
        return values_N
    sums = values_N.new_zeros(int(trajectory_N.max()) + 1).index_add(0, trajectory_N, values_N)
    return sums[trajectory_N]
