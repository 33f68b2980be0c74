"""Random batches for comparing two implementations, the same in every process and on every machine."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

SIZES: dict[str, tuple[list[int], int]] = {
    "small": ([2, 2, 2], 9),
    "even": ([5, 5, 5, 5], 20),
    "uneven": ([8, 3, 8, 2, 7, 4], 33),
}
"""Trajectories of each group, and tokens of the longest response."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomBatch:
    """B responses of at most T tokens, with observations inside; all floats are doubles."""

    sizes: list[int]
    """Sizes of the groups, whose trajectories follow each other."""
    rewards_B: Tensor
    mask_BT: Tensor
    """bool: sampled tokens."""
    advantages_B: Tensor
    logprobs_BT: Tensor
    old_BT: Tensor
    ref_BT: Tensor
    rollout_BT: Tensor
    values_BT: Tensor
    new_values_BT: Tensor

    @property
    def trajectory_N(self) -> Tensor:
        """Number of each sampled token's response."""
        return torch.arange(len(self.mask_BT))[:, None].expand_as(self.mask_BT)[self.mask_BT]

    @property
    def far_logprobs_BT(self) -> Tensor:
        """Log-probabilities of which two are far from the old ones, on the side that is not clipped."""
        logprobs_BT = self.logprobs_BT.clone()
        logprobs_BT[int(self.advantages_B.argmin()), 0] += 95.0
        logprobs_BT[int(self.advantages_B.argmax()), 0] -= 95.0
        return logprobs_BT

    def rows(self, values_BT: Tensor) -> list[Tensor]:
        """Return the sampled tokens of each response."""
        return [row[sampled] for row, sampled in zip(values_BT, self.mask_BT, strict=True)]


def random_batch(size: str) -> RandomBatch:
    """Return a batch; NumPy keeps the draws of `RandomState` the same in all its versions."""
    sizes, length = SIZES[size]
    draws = np.random.RandomState(len(sizes) * length)
    shape = (sum(sizes), length)
    mask = (draws.random_sample(shape) < 0.75) & (np.arange(length) < draws.randint(2, length + 1, (shape[0], 1)))
    mask[:, 0] = True
    old, values = draws.standard_normal((2, *shape))
    near, ref, rollout, new_values = draws.standard_normal((4, *shape)) * np.array([0.3, 0.5, 0.3, 0.4]).reshape(
        4, 1, 1
    )
    numbers = {
        "rewards_B": draws.choice([0.0, 0.25, 0.5, 1.0], shape[0]),
        "advantages_B": draws.standard_normal(shape[0]),
        "logprobs_BT": old + near,
        "old_BT": old,
        "ref_BT": old + ref,
        "rollout_BT": old + rollout,
        "values_BT": values,
        "new_values_BT": values + new_values,
    }
    tensors = {name: torch.from_numpy(value) for name, value in numbers.items()}
    return RandomBatch(sizes=sizes, mask_BT=torch.from_numpy(mask), **tensors)
