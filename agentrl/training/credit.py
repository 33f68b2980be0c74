"""From the rewards of the groups of a step to what each sampled token is worth, on each rank for its own trajectories.

Whole groups are needed for a baseline, so each rank knows all rewards; what is made of single tokens (the divergence, a
critic's values) is known to the rank that has the trajectory, and added up where a group needs it. Letters in shapes: N scored
tokens of one trajectory.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.algorithms.advantage import NORMALISED_OVER_TOKENS
from agentrl.algorithms.token_advantage import (
    TokenAdvantage,
    TokenCredit,
    normalised,
    token_rewards,
)
from agentrl.training import own_functions
from agentrl.training.parallel import Parallel
from agentrl.training.sharding import UpdateShard
from agentrl.training.token_inputs import TokenInputs
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema import AlgorithmSection


class CreditAssignment:
    """Advantages and returns, by the config's `algorithm`."""

    def __init__(self, algorithm: "AlgorithmSection") -> None:
        """Find the estimators that the config names.

        Raises:
            ConfigError: one of the user's own cannot be imported.
        """
        self._config = algorithm
        estimator = own_functions.advantage(algorithm.advantage)
        self._kl_estimator = own_functions.kl_estimator(algorithm.kl_estimator)
        self._by_token = estimator if isinstance(estimator, TokenAdvantage) else None
        self._by_group = None if isinstance(estimator, TokenAdvantage) else estimator

    def advantages(
        self,
        shard: UpdateShard,
        trajectories: Sequence[Trajectory],
        inputs: Sequence[TokenInputs],
        parallel: Parallel,
        *,
        kl_coefficient: float,
    ) -> list[Tensor]:
        """Return the advantages `[N]` of the scored tokens of this rank's trajectories; every rank must call it.

        Args:
            shard: the plan, with the rewards of all groups.
            trajectories: this rank's.
            inputs: log-probabilities where the reward has a divergence in it, and values where the estimator uses them.
            parallel: the ranks.
            kl_coefficient: of this step.

        Raises:
            ValueError: an input is missing.
            ConfigError: a function of the user's own gave what it must not.
        """
        if self._by_token is not None:
            credits = self._token_credits(self._by_token, shard, trajectories, inputs, kl_coefficient)
            advantages = [credit.advantages_N for credit in credits]
            return normalised(advantages, add_up=parallel.sum) if self._config.normalise_by_std else advantages
        assert self._by_group is not None  # it is the one or the other
        divergences = [self._divergence(*pair) for pair in zip(trajectories, inputs, strict=True)]
        rewards = self._rewards_with_divergence(shard, divergences, parallel, kl_coefficient)
        groups = [torch.tensor(rewards_G) for rewards_G in rewards]
        by_group = self._by_group(groups, normalise_by_std=self._config.normalise_by_std)
        advantages = [
            by_group[item.group][item.member].expand(len(divergence_N))
            for item, divergence_N in zip(shard.items, divergences, strict=True)
        ]
        over_tokens = self._config.normalise_by_std and self._config.advantage in NORMALISED_OVER_TOKENS
        return normalised(advantages, add_up=parallel.sum) if over_tokens else advantages

    def returns(
        self,
        shard: UpdateShard,
        trajectories: Sequence[Trajectory],
        inputs: Sequence[TokenInputs],
        *,
        kl_coefficient: float,
    ) -> list[Tensor]:
        """Return what a critic is to learn, `[N]` for each of this rank's trajectories; see `advantages`.

        Raises:
            ValueError: the estimator gives one advantage per trajectory, so that there is nothing to expect of a token.
        """
        if self._by_token is None:
            raise ValueError(
                f"critic: `algorithm.advantage: {self._config.advantage}` has no returns to learn; use `gae`"
            )
        credits = self._token_credits(self._by_token, shard, trajectories, inputs, kl_coefficient)
        return [credit.returns_N for credit in credits]

    def _token_credits(
        self,
        estimator: TokenAdvantage,
        shard: UpdateShard,
        trajectories: Sequence[Trajectory],
        inputs: Sequence[TokenInputs],
        kl_coefficient: float,
    ) -> list[TokenCredit]:
        credits = []
        for item, trajectory, given in zip(shard.items, trajectories, inputs, strict=True):
            rewards_N = token_rewards(
                shard.group_rewards[item.group][item.member],
                self._divergence(trajectory, given),
                kl_coefficient=kl_coefficient,
            )
            values_N = None if given.values is None else torch.tensor(given.values)
            if values_N is None and estimator.uses_values:
                raise ValueError(
                    f"trajectory `{trajectory.trajectory_id}`: `algorithm.advantage: {self._config.advantage}` needs values, "
                    "and there are none: is there a critic?"
                )
            credits.append(
                estimator.estimate(
                    rewards_N, values_N, discount=self._config.discount, gae_lambda=self._config.gae_lambda
                )
            )
        return credits

    def _divergence(self, trajectory: Trajectory, given: TokenInputs) -> Tensor:
        """Return what each token is charged for, before the coefficient: zeros where the reward has no such term."""
        if not self._config.kl_in_reward:
            return torch.zeros(sum(trajectory.response_mask[1:]))
        if given.old_logprobs is None or given.ref_logprobs is None:
            raise ValueError(
                f"trajectory `{trajectory.trajectory_id}`: `algorithm.kl_in: reward` needs the log-probabilities of actor and "
                "reference before the update"
            )
        return self._kl_estimator(torch.tensor(given.old_logprobs), torch.tensor(given.ref_logprobs))

    def _rewards_with_divergence(
        self, shard: UpdateShard, divergences: Sequence[Tensor], parallel: Parallel, kl_coefficient: float
    ) -> list[list[float]]:
        """Return the rewards of all groups, less what the tokens of each trajectory cost, whichever rank has it."""
        if not self._config.kl_in_reward:
            return shard.group_rewards
        starts = [0, *accumulate(len(rewards_G) for rewards_G in shard.group_rewards)]
        costs = [0.0] * starts[-1]
        for item, divergence_N in zip(shard.items, divergences, strict=True):
            costs[starts[item.group] + item.member] = kl_coefficient * divergence_N.sum().item()
        costs = parallel.sum(costs)
        return [
            [reward - cost for reward, cost in zip(rewards_G, costs[start:], strict=False)]
            for rewards_G, start in zip(shard.group_rewards, starts, strict=False)
        ]
