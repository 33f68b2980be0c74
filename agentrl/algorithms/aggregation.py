"""From the losses of tokens to the loss of a batch: what each token counts.

Letters in shapes: N scored tokens.
"""

from typing import Protocol

import torch
from torch import Tensor


class Aggregation(Protocol):
    """What tokens count; one of your own is named in the config by its import path."""

    def __call__(self, trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
        """Give each token its weight, beside the mean over all tokens of the batch, in which every token counts the same.

        Args:
            trajectory_N: number of the trajectory that each token is of, from 0, all of its tokens at once; a part of the batch
                is given at a time, and may have no tokens.
            mean_length: scored tokens per trajectory in the whole batch, over all ranks.
            max_length: that a response may have.

        Returns:
            `[N]`; the mean over the batch of `weight x loss` is the loss of the batch.
        """
        ...


def token_mean(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Let all tokens count the same, so that long trajectories count for more (DAPO, arXiv:2503.14476 sec. 3.3)."""
    del mean_length, max_length
    return torch.ones_like(trajectory_N, dtype=torch.float32)


def trajectory_mean(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Give every trajectory the same weight, which its tokens share (GRPO, arXiv:2402.03300 eq. 3)."""
    del max_length
    return mean_length / trajectory_N.bincount()[trajectory_N]


def fixed_length(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Divide by the longest that a response may be, so that length changes nothing (Dr. GRPO, arXiv:2503.20783 sec. 3.2)."""
    return torch.full_like(trajectory_N, mean_length / max_length, dtype=torch.float32)


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "trajectory_mean": trajectory_mean,
    "fixed_length": fixed_length,
}
"""By their names in the config."""


def trajectory_means(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Give each token the mean over its trajectory."""
    return trajectory_sums(values_N, trajectory_N) / trajectory_N.bincount()[trajectory_N]


def trajectory_sums(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Give each token the sum over its trajectory."""
    if not len(values_N):
        return values_N
    sums = values_N.new_zeros(int(trajectory_N.max()) + 1).index_add(0, trajectory_N, values_N)
    return sums[trajectory_N]
