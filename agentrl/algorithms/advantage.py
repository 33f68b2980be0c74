"""Advantages from the rewards of a group.

Letters in shapes: G trajectories of one group.
"""

import torch
from torch import Tensor

_STD_FLOOR = 1e-6
"""Added to the standard deviation, as the released code of rStar2-Agent does."""


def group_advantages(rewards_G: Tensor, *, normalise_by_std: bool) -> Tensor:
    """Centre the rewards of a group on their mean, and divide by their standard deviation (GRPO, arXiv:2402.03300).

    The deviation is the sample's (divisor G - 1), as in verl and TRL. Without the division it is the variant of
    Dr. GRPO (arXiv:2503.20783).

    Args:
        rewards_G: float rewards of the trajectories that are trained on.
        normalise_by_std: divide by the deviation.

    Returns:
        `[G]`; exact zeros where all rewards are equal, and so for a single trajectory.
    """
    if rewards_G.numel() == 0 or bool((rewards_G == rewards_G[0]).all()):
        return torch.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (rewards_G.std() + _STD_FLOOR) if normalise_by_std else centred_G
