"""Advantages from the rewards of groups: one per trajectory (`token_advantage` has those per token).

Letters in shapes: G trajectories of one group.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

STD_FLOOR = 1e-6
"""Added to the standard deviation, as the released code of rStar2-Agent does."""

AdvantageFunction = Callable[..., list[Tensor]]
"""`(rewards of each group [G], normalise_by_std=...) -> advantages of each group [G]`; a custom one is named by import path."""


def grpo(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    """Centre the rewards of each group on their mean, and divide by their standard deviation (GRPO, arXiv:2402.03300).

    The deviation is the sample's (divisor G - 1), as in verl and TRL. Without the division this is Dr. GRPO
    (arXiv:2503.20783). Exact zeros where all rewards are equal, so also for a single trajectory.
    """
    return [_centred(rewards_G, normalise_by_std=normalise_by_std) for rewards_G in groups]


def rloo(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    """Subtract from each reward the mean of the others of its group (RLOO, arXiv:2402.14740 sec. 2.2).

    `normalise_by_std` divides by the deviation of the advantages of the whole step.
    """
    left_out = [
        _centred(rewards_G, normalise_by_std=False) * (len(rewards_G) / max(1, len(rewards_G) - 1))
        for rewards_G in groups
    ]
    every = torch.cat([*left_out, torch.zeros(0)])
    if not normalise_by_std or len(every) < 2:
        return left_out
    # Each group's mean is 0 but for rounding; subtracting that would give a sign to advantages that are exactly 0.
    deviation = every.std() + STD_FLOOR
    return [advantages_G / deviation for advantages_G in left_out]


def reinforce_plus_plus_baseline(groups: Sequence[Tensor], *, normalise_by_std: bool) -> list[Tensor]:
    """Centre on the group's mean (REINFORCE++-baseline, arXiv:2501.03262).

    `normalise_by_std` is not used here: the caller normalises over all sampled tokens of the step, as verl and OpenRLHF do,
    so that long trajectories weigh more (`NORMALISED_OVER_TOKENS`).
    """
    del normalise_by_std
    return [_centred(rewards_G, normalise_by_std=False) for rewards_G in groups]


ADVANTAGES: dict[str, AdvantageFunction] = {
    "grpo": grpo,
    "rloo": rloo,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
}

NORMALISED_OVER_TOKENS = ("reinforce_plus_plus_baseline",)
"""Estimators whose advantages are normalised over tokens (`token_advantage.normalised`)."""


def _centred(rewards_G: Tensor, *, normalise_by_std: bool) -> Tensor:
    if rewards_G.numel() == 0 or bool((rewards_G == rewards_G[0]).all()):
        return torch.zeros_like(rewards_G)
    centred_G = rewards_G - rewards_G.mean()
    return centred_G / (rewards_G.std() + STD_FLOOR) if normalise_by_std else centred_G
