"""Weights of tokens in the loss of a batch.

Letters in shapes: N scored tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Aggregation = Callable[..., Tensor]
"""`(trajectory_N, mean_length=..., max_length=...) -> [N]`: weights of tokens; the batch's loss is the mean of `weight x loss`.
A custom one is named in the config by its import path.

`trajectory_N` numbers each token's trajectory, from 0. A call sees a part of the batch, maybe without tokens, but always whole
trajectories. `mean_length`: scored tokens per trajectory in the whole batch, over all ranks. `max_length`: longest possible
response, in tokens.
"""


def token_mean(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Weigh all tokens equally, so that long trajectories weigh more (DAPO, arXiv:2503.14476 sec. 3.3)."""
    del mean_length, max_length
    return torch.ones_like(trajectory_N, dtype=torch.float32)


def trajectory_mean(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Weigh all trajectories equally; the tokens of one share its weight (GRPO, arXiv:2402.03300 eq. 3)."""
    del max_length
    return mean_length / trajectory_N.bincount()[trajectory_N]


def fixed_length(trajectory_N: Tensor, /, *, mean_length: float, max_length: int) -> Tensor:
    """Divide by the longest possible response, so that length has no influence (Dr. GRPO, arXiv:2503.20783 sec. 3.2)."""
    return torch.full_like(trajectory_N, mean_length / max_length, dtype=torch.float32)


AGGREGATIONS: dict[str, Aggregation] = {
    "token_mean": token_mean,
    "trajectory_mean": trajectory_mean,
    "fixed_length": fixed_length,
}


def trajectory_means(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Return for each token the mean over its trajectory."""
    return trajectory_sums(values_N, trajectory_N) / trajectory_N.bincount()[trajectory_N]


def trajectory_sums(values_N: Tensor, trajectory_N: Tensor) -> Tensor:
    """Return for each token the sum over its trajectory."""
    if not len(values_N):
        return values_N
    sums = values_N.new_zeros(int(trajectory_N.max()) + 1).index_add(0, trajectory_N, values_N)
    return sums.index_select(0, trajectory_N)  # the gradient of `sums[trajectory_N]` is added up in any order
