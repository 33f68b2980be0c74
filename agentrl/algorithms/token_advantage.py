"""Advantages of single tokens, from the rewards along a trajectory.

Only sampled tokens are steps: neither discount nor recursion counts observations.

Letters in shapes: N scored tokens of one trajectory.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

VARIANCE_FLOOR = 1e-8
"""Added to the variance of the tokens of a step, as verl does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCredit:
    """Advantages of the tokens of a trajectory, not normalised yet, and the targets of a critic before each token."""

    advantages_N: Tensor
    returns_N: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenAdvantage:
    """An estimator of token advantages; a custom one is such an object in a module, named in the config by its import path.

    Example: `mine = TokenAdvantage(estimate=my_function, uses_values=False)`, and `algorithm.advantage: my_module.mine`.
    """

    estimate: Callable[..., TokenCredit]
    """`(rewards_N, values_N, discount=..., gae_lambda=...) -> TokenCredit`; `values_N` is None without a critic."""
    uses_values: bool
    """True if the estimator needs a critic."""


def token_rewards(reward: float, divergence_N: Tensor, *, kl_coefficient: float) -> Tensor:
    """Return the reward of each token: the trajectory's on the last, minus a divergence on each (arXiv:1909.08593).

    `kl_coefficient` is the cost of a nat of `divergence_N`.
    """
    rewards_N = -kl_coefficient * divergence_N
    if len(rewards_N):
        rewards_N[-1] += reward
    return rewards_N


def discounted_returns(
    rewards_N: Tensor, values_N: Tensor | None = None, *, discount: float, gae_lambda: float = 1.0
) -> TokenCredit:
    """Credit each token with the discounted rewards that follow it (REINFORCE++, arXiv:2501.03262 eq. 5).

    `values_N` and `gae_lambda` are not used.
    """
    del values_N, gae_lambda
    returns_N = _discounted_sums(rewards_N, discount)
    return TokenCredit(advantages_N=returns_N, returns_N=returns_N)


def gae(rewards_N: Tensor, values_N: Tensor | None, *, discount: float, gae_lambda: float) -> TokenCredit:
    """Estimate advantages from a critic's values (GAE, arXiv:1506.02438 eq. 16); the trajectory ends after its last token.

    `values_N` are the values before each token; ValueError if one is missing. `gae_lambda=0` relies on the critic only,
    1 on the rewards only.
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


def normalised(advantages: list[Tensor], *, add_up: Callable[[list[float]], list[float]]) -> list[Tensor]:
    """Normalise the advantages of all tokens of a step to mean 0 and deviation 1 (divisor: their number - 1).

    `advantages` are those of this rank's trajectories, `[N]` each; `add_up` sums each number over the ranks.
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
    """Return at each place the sum of the terms from there on, discounted by `factor`."""
    sums, running = [], 0.0
    for term in reversed(terms_N.double().tolist()):
        running = term + factor * running
        sums.append(running)
    return torch.tensor(sums[::-1], dtype=terms_N.dtype)
