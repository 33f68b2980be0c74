"""The distance between the policy that sampled and the policy in training, and the weights that make up for it.

The two differ where the engine computes otherwise than the actor does, and where trajectories began under older weights. The
ratio that PPO clips is against the actor before the update, so the way from there to the engine is a factor of its own
(decoupled PPO, arXiv:2110.00641; for asynchronous rollouts, AReaL, arXiv:2505.24298). Letters in shapes: N scored tokens.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from agentrl.algorithms.aggregation import trajectory_means, trajectory_sums
from agentrl.algorithms.kl_divergence import k3
from agentrl.algorithms.log_ratio import bounded


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutMismatch:
    """How far the engine's log-probabilities are from the actor's on the same tokens; near zero, or something is wrong."""

    kl_sum: Tensor
    """`[]`: k3 estimate of KL(rollout || actor), summed over tokens."""
    abs_difference_sum: Tensor
    """`[]`: |actor - rollout| in nats, summed over tokens."""
    ratio_max: Tensor
    """`[]`: greatest actor / rollout ratio; 0 where there are no tokens."""


def rollout_mismatch(old_logprobs_N: Tensor, rollout_logprobs_N: Tensor) -> RolloutMismatch:
    """Compare the actor before the update with the engine that sampled the tokens."""
    difference_N = old_logprobs_N - rollout_logprobs_N
    reported_N = bounded(difference_N)
    return RolloutMismatch(
        kl_sum=k3(torch.zeros_like(reported_N), reported_N).sum(),
        abs_difference_sum=difference_N.abs().sum(),
        ratio_max=reported_N.exp().max() if len(reported_N) else reported_N.new_zeros(()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutWeights:
    """Importance weights of sampled tokens."""

    weights_N: Tensor
    """Without gradient, between 0 and the greatest ratio allowed."""
    num_cut: Tensor
    """`[]`: tokens whose weight is not their ratio."""


def rollout_weights(
    old_logprobs_N: Tensor,
    rollout_logprobs_N: Tensor,
    trajectory_N: Tensor,
    *,
    method: Literal["truncate", "mask"],
    level: Literal["token", "trajectory", "geometric"],
    min_ratio: float,
    max_ratio: float,
) -> RolloutWeights:
    """Weigh each token by `actor before the update / engine`.

    Args:
        old_logprobs_N: of the actor before the update.
        rollout_logprobs_N: of the engine, as it sampled.
        trajectory_N: number of the trajectory that each token is of, from 0.
        method: `truncate` lowers ratios to `max_ratio` (truncated importance sampling, Ionides 2008; for engines beside
            actors, Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025); `mask` drops
            what is outside of `[min_ratio, max_ratio]` (masked importance sampling; IcePop in arXiv:2510.18855).
        level: `token` looks at each token alone; `trajectory`, at the product over the tokens of a trajectory, which is the
            ratio of its probabilities (TRL's and verl's `sequence`); `geometric`, at their geometric mean (as GSPO does,
            arXiv:2507.18071). With the last two a trajectory is weighed as a whole.
        min_ratio: of `mask` only.
        max_ratio: greatest weight.
    """
    log_ratio_N = old_logprobs_N - rollout_logprobs_N
    if level == "trajectory":
        log_ratio_N = trajectory_sums(log_ratio_N, trajectory_N)
    elif level == "geometric":
        log_ratio_N = trajectory_means(log_ratio_N, trajectory_N)
    ratio_N = bounded(log_ratio_N).exp()
    if method == "truncate":
        return RolloutWeights(weights_N=ratio_N.clamp(max=max_ratio), num_cut=(ratio_N > max_ratio).sum())
    outside_N = (ratio_N < min_ratio) | (ratio_N > max_ratio)
    return RolloutWeights(weights_N=ratio_N.masked_fill(outside_N, 0.0), num_cut=outside_N.sum())
