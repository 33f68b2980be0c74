"""Advantages of single tokens, from the rewards along a trajectory.

A trajectory is here what the policy sampled of it and nothing else: observations are no steps, so that neither the discount nor
the recursion counts them. Letters in shapes: N scored tokens of one trajectory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Added to the variance of the tokens of a step, as verl does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredit:
    """What the tokens of a trajectory are worth."""

    advantages_N: Tensor
    """Not normalised yet."""
    returns_N: Tensor
    """What a critic is to expect at each token, before it is sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantage:
    """An estimator of this kind; one of your own is such an object in a module, named in the config by its import path.

    Example: `mine = TokenAdvantage(estimate=my_function, uses_values=False)`, and `algorithm.advantage: my_module.mine`.
    """

    estimate: Callable[..., TokenCredit]
    """`(rewards_N, values_N, discount=..., gae_lambda=...) -> TokenCredit`; `values_N` is None where there is no critic."""
    uses_values: bool
    """Whether there must be a critic."""


def token_rewards(reward: float, divergence_N: Tensor, *, kl_coefficient: float) -> Tensor:
    """Put the reward of a trajectory on its last token, and take the divergence off each (Ziegler et al., arXiv:1909.08593).

    Args:
        reward: of the trajectory.
        divergence_N: estimates of the divergence from the reference at each token, without gradient; zeros where the reward has
            no such term.
        kl_coefficient: what a nat costs.
    """
    rewards_N = -kl_coefficient * divergence_N
    if len(rewards_N):
        rewards_N[-1] += reward
    return rewards_N


def discounted_returns(
    rewards_N: Tensor, values_N: Tensor | None = None, *, discount: float, gae_lambda: float = 1.0
) -> TokenCredit:
    """Credit each token with the discounted rewards from it on (REINFORCE++, arXiv:2501.03262 eq. 5).

    `values_N` and `gae_lambda` are not used.
    """
    del values_N, gae_lambda
    returns_N = _discounted_sums(rewards_N, discount)
    return TokenCredit(advantages_N=returns_N, returns_N=returns_N)


def gae(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
    """Estimate advantages from a critic's values (GAE, arXiv:1506.02438 eq. 16); the trajectory ends after its last token.

    Args:
        rewards_N: of each token.
        values_N: what the critic expects before each token.
        discount: gamma.
        gae_lambda: 0 trusts the critic alone, 1 the rewards alone.

    Raises:
        ValueError: there are no values, or not as many as rewards.
    """
    if values_N is None or len(values_N) != len(rewards_N):
        given = "none" if values_N is None else str(len(values_N))
        raise ValueError(f"gae: a trajectory of {len(rewards_N)} sampled tokens needs as many values, and has {given}")
    following_N = torch.cat([values_N[1:], values_N.new_zeros(min(1, len(values_N)))])
    advantages_N = _discounted_sums(rewards_N + discount * following_N - values_N, discount * gae_lambda)
    return TokenCredit(advantages_N=advantages_N, returns_N=advantages_N + values_N)


TOKEN_ADVANTAGES: dict[str, TokenAdvantage] = {
    "reinforce_plus_plus": TokenAdvantage(estimate=discounted_returns, uses_values=False),
    "gae": TokenAdvantage(estimate=gae, uses_values=True),
}
"""By their names in the config."""


def normalised(advantages: list[Tensor], *, add_up: Callable[[list[float]], list[float]]) -> list[Tensor]:
    """Bring the advantages of all tokens of a step to mean 0 and deviation 1 (divisor: their number - 1).

    Args:
        advantages: of this rank's trajectories, `[N]` each.
        add_up: adds each number over the ranks.
    """
    every = torch.cat([*advantages, torch.zeros(0)]).double()
    count, total = add_up([float(len(every)), every.sum().item()])
    mean = total / max(1.0, count)
    [squares] = add_up([(every - mean).square().sum().item()])
    if count < 2:
        return advantages
    deviation = (squares / (count - 1) + VARIANCE_FLOOR) ** 0.5
    return [((advantages_N.double() - mean) / deviation).float() for advantages_N in advantages]


def _discounted_sums(terms_N: Tensor, factor: float) -> Tensor:
    """Return at each place the terms from there on, each weighed by `factor` once more than the one before."""
    sums, running = [], 0.0
    for term in reversed(terms_N.double().tolist()):
        running = term + factor * running
        sums.append(running)
    return torch.tensor(sums[::-1], dtype=terms_N.dtype)
