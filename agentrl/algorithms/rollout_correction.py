"""Importance weights that correct the mismatch between the sampling policy and the actor before the update.

The two differ because engine and actor round differently, and because trajectories may begin under older weights. PPO's
ratio starts at the actor before the update, so this one is a separate factor (decoupled PPO, arXiv:2110.00641; for asynchronous
rollouts, AReaL, arXiv:2505.24298). Letters in shapes: N scored tokens.
"""

from typing import Literal

from torch import Tensor

from agentrl.algorithms.aggregation import trajectory_means, trajectory_sums
from agentrl.algorithms.kl_divergence import bounded


def rollout_weights(
    old_logprobs_N: Tensor,
    rollout_logprobs_N: Tensor,
    trajectory_N: Tensor,
    *,
    method: Literal["truncate", "mask"],
    level: Literal["token", "trajectory", "geometric"],
    min_ratio: float,
    max_ratio: float,
) -> tuple[Tensor, Tensor]:
    """Weigh each token by `actor before the update / engine`.

    Args:
        old_logprobs_N: log-probabilities of the actor before the update.
        rollout_logprobs_N: log-probabilities of the engine.
        trajectory_N: number of each token's trajectory, from 0.
        method: `truncate` lowers ratios to `max_ratio` (truncated importance sampling, Ionides 2008; for engines beside
            actors, Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025); `mask` drops
            ratios outside `[min_ratio, max_ratio]` (masked importance sampling; IcePop in arXiv:2510.18855).
        level: `token` weighs each token by its own ratio; `trajectory`, by the product over its trajectory, the ratio of the
            trajectory's probabilities (TRL's and verl's `sequence`); `geometric`, by their geometric mean (as GSPO,
            arXiv:2507.18071).
        min_ratio: lower bound, for `mask` only.
        max_ratio: upper bound.

    Returns:
        Weights `[N]` from 0 to `max_ratio`, and a bool `[N]`: tokens whose weight is not their ratio.
    """
    log_ratio_N = old_logprobs_N - rollout_logprobs_N
    if level == "trajectory":
        log_ratio_N = trajectory_sums(log_ratio_N, trajectory_N)
    elif level == "geometric":
        log_ratio_N = trajectory_means(log_ratio_N, trajectory_N)
    ratio_N = bounded(log_ratio_N).exp()
    if method == "truncate":
        return ratio_N.clamp(max=max_ratio), ratio_N > max_ratio
    outside_N = (ratio_N < min_ratio) | (ratio_N > max_ratio)
    return ratio_N.masked_fill(outside_N, 0.0), outside_N
