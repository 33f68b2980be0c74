"""Credit assignment: advantages and returns of sampled tokens from the rewards of a step's groups, per rank.

Baselines need whole groups, so each rank knows all rewards. Per-token values (divergence, a critic's values) are known only
to the rank of the trajectory, and summed over ranks if a group needs them. Letters in shapes: N scored tokens of one
trajectory.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.algorithms.advantage import ADVANTAGES, NORMALISED_OVER_TOKENS, AdvantageFunction
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS
from agentrl.algorithms.token_advantage import (
    TOKEN_ADVANTAGES,
    TokenAdvantage,
    TokenCredit,
    normalised,
    token_rewards,
)
from agentrl.config.class_path import named
from agentrl.errors import ConfigError
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import UpdateShard
from agentrl.training.update.user_functions import require_result
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import AlgorithmSection


class CreditAssignment:
    """Advantages and returns as the config's `algorithm` defines them."""

    def __init__(self, algorithm: "AlgorithmSection") -> None:
        self._config = algorithm
        built_in: dict[str, AdvantageFunction | TokenAdvantage] = {**ADVANTAGES, **TOKEN_ADVANTAGES}
        self._estimator = named(algorithm.advantage, built_in, key="algorithm.advantage")
        self._kl_estimator = named(algorithm.kl_estimator, KL_ESTIMATORS, key="algorithm.kl_estimator")
        self._where = f"`algorithm.advantage`: `{algorithm.advantage}`"

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

        `inputs` have log-probabilities if the reward includes a divergence, and values if the estimator uses them.
        """
        if isinstance(self._estimator, TokenAdvantage):
            credits = self._token_credits(self._estimator, shard, trajectories, inputs, kl_coefficient)
            advantages = [credit.advantages_N for credit in credits]
            return normalised(advantages, add_up=parallel.sum) if self._config.normalise_by_std else advantages
        divergences = [self._divergence(*pair) for pair in zip(trajectories, inputs, strict=True)]
        rewards = self._rewards_with_divergence(shard, divergences, parallel, kl_coefficient)
        groups = [torch.tensor(rewards_G) for rewards_G in rewards]
        by_group = self._estimator(groups, normalise_by_std=self._config.normalise_by_std)
        if len(by_group) != len(groups):
            raise ConfigError(
                f"{self._where} gave {len(by_group)} tensors for {len(groups)} groups; return one for each"
            )
        for advantages_G, rewards_G in zip(by_group, groups, strict=True):
            require_result(advantages_G, rewards_G, self._where)
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
        """Return the targets of a critic, `[N]` for each trajectory."""
        assert isinstance(self._estimator, TokenAdvantage), "others give no returns; see `check_algorithm_functions`"
        credits = self._token_credits(self._estimator, shard, trajectories, inputs, kl_coefficient)
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
        for item, trajectory, token_inputs in zip(shard.items, trajectories, inputs, strict=True):
            rewards_N = token_rewards(
                shard.group_rewards[item.group][item.member],
                self._divergence(trajectory, token_inputs),
                kl_coefficient=kl_coefficient,
            )
            values_N = None if token_inputs.values is None else torch.tensor(token_inputs.values)
            credit = estimator.estimate(
                rewards_N, values_N, discount=self._config.discount, gae_lambda=self._config.gae_lambda
            )
            if not isinstance(credit, TokenCredit):
                raise ConfigError(f"{self._where} gave a {type(credit).__name__}; return a `TokenCredit`")
            require_result(credit.advantages_N, rewards_N, self._where)
            if estimator.uses_values:
                require_result(credit.returns_N, rewards_N, self._where)
            credits.append(credit)
        return credits

    def _divergence(self, trajectory: Trajectory, inputs: TokenInputs) -> Tensor:
        """Return the divergence of each token, without the coefficient; zeros if the reward has no such term."""
        if not self._config.kl_in_reward:
            return torch.zeros(sum(trajectory.response_mask[1:]))
        assert inputs.old_logprobs is not None, "`algorithm.kl_in: reward` asks the actor for them before the update"
        assert inputs.ref_logprobs is not None, "and the reference"
        old_logprobs_N = torch.tensor(inputs.old_logprobs)
        kl_N = self._kl_estimator(old_logprobs_N, torch.tensor(inputs.ref_logprobs))
        require_result(kl_N, old_logprobs_N, f"`algorithm.kl_estimator`: `{self._config.kl_estimator}`")
        return kl_N

    def _rewards_with_divergence(
        self, shard: UpdateShard, divergences: Sequence[Tensor], parallel: Parallel, kl_coefficient: float
    ) -> list[list[float]]:
        """Return the rewards of all groups minus the divergence of each trajectory, over all ranks."""
        if not self._config.kl_in_reward:
            return shard.group_rewards
        costs = [[0.0] * len(rewards_G) for rewards_G in shard.group_rewards]
        for item, divergence_N in zip(shard.items, divergences, strict=True):
            costs[item.group][item.member] = kl_coefficient * divergence_N.sum().item()
        summed = iter(parallel.sum([cost for costs_G in costs for cost in costs_G]))
        return [[reward - next(summed) for reward in rewards_G] for rewards_G in shard.group_rewards]
