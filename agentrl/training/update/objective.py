"""Loss of the policy update: policy loss, divergence from the reference, entropy, and weights of tokens.

Letters in shapes: N scored tokens of a micro-batch.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.algorithms.aggregation import AGGREGATIONS, token_mean
from agentrl.algorithms.kl_divergence import KL_ESTIMATORS, bounded, k3
from agentrl.algorithms.policy_loss import POLICY_LOSSES, ClipRange, PolicyLoss
from agentrl.algorithms.rollout_correction import rollout_weights
from agentrl.config.class_path import named
from agentrl.errors import ConfigError
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.scoring.token_logprobs import TokenScores
from agentrl.training.update.tally import TokenTally
from agentrl.training.update.user_functions import require_result

if TYPE_CHECKING:
    from agentrl.config.schema.run import AlgorithmSection


class Objective:
    """The loss of micro-batches as the config's `algorithm` defines it."""

    def __init__(
        self, algorithm: "AlgorithmSection", *, max_response_tokens: int, router_coefficient: float = 0.0
    ) -> None:
        """Look up the functions that the config names; ConfigError if a custom one cannot be imported.

        `max_response_tokens` is for `fixed_length`, `router_coefficient` for the auxiliary loss of routers, if there is one.
        """
        self._config = algorithm
        self._max_length = max_response_tokens
        self._router_coefficient = router_coefficient
        self._policy_loss = named(algorithm.policy_loss, POLICY_LOSSES, key="algorithm.policy_loss")
        self._aggregation = named(algorithm.aggregation, AGGREGATIONS, key="algorithm.aggregation")
        self._kl_estimator = named(algorithm.kl_estimator, KL_ESTIMATORS, key="algorithm.kl_estimator")
        self._clip = ClipRange(
            low=algorithm.clip_ratio_low, high=algorithm.clip_ratio_high, dual=algorithm.clip_ratio_dual
        )

    def loss(
        self,
        batch: MicroBatch,
        scores: TokenScores,
        *,
        old_logprobs_N: Tensor,
        mean_length: float,
        kl_coefficient: float,
        tally: TokenTally,
        scored_share: float = 1.0,
    ) -> Tensor:
        """Return the loss summed over the tokens of a micro-batch, `[]`, and add its metrics to `tally`.

        `old_logprobs_N` are those of the actor before the update. `mean_length` and `scored_share` are the scored tokens per
        trajectory and per token in the whole mini-batch, over all ranks.
        """
        policy = self._policy_loss(
            scores.logprobs_N, old_logprobs_N, batch.advantages_N, batch.trajectory_N, self._clip
        )
        where = f"`algorithm.policy_loss`: `{self._config.policy_loss}`"
        if not isinstance(policy, PolicyLoss):
            raise ConfigError(f"{where} gave a {type(policy).__name__}; return a `PolicyLoss`")
        loss_N = policy.loss_N
        require_result(loss_N, scores.logprobs_N, where)
        weights_N = self._rollout_weights(batch, old_logprobs_N, tally)
        if weights_N is not None:
            loss_N = weights_N * loss_N
        if self._config.kl_coefficient:
            kl_N = self._divergence(batch, scores, old_logprobs_N)
            tally.add(kl_reference=kl_N.sum())
            if not self._config.kl_in_reward:  # else it is in the advantages
                loss_N = loss_N + kl_coefficient * kl_N
        if self._config.entropy_coefficient:
            loss_N = loss_N - self._config.entropy_coefficient * scores.entropy_N
        if self._aggregation is not token_mean:  # its weights are all 1
            share_N = self._aggregation(batch.trajectory_N, mean_length=mean_length, max_length=self._max_length)
            require_result(share_N, batch.trajectory_N, f"`algorithm.aggregation`: `{self._config.aggregation}`")
            loss_N = loss_N * share_N
        self._add_metrics(batch, policy, scores, old_logprobs_N, tally)
        loss = loss_N.sum()
        if scores.router_loss is not None:  # summed over all tokens, the rest over scored ones
            router_loss = scores.router_loss * scored_share
            tally.add(router_aux_loss=router_loss)
            loss = loss + self._router_coefficient * router_loss
        tally.add(loss=loss)
        return loss

    def _add_metrics(
        self, batch: MicroBatch, policy: PolicyLoss, scores: TokenScores, old_logprobs_N: Tensor, tally: TokenTally
    ) -> None:
        mismatch_N = old_logprobs_N - batch.rollout_logprobs_N
        rollout_ratio_N = bounded(mismatch_N).exp()
        tally.add(
            clip_fraction=policy.clipped_N.sum(),
            clip_fraction_low=policy.clipped_low_N.sum(),
            clip_fraction_high=policy.clipped_high_N.sum(),
            entropy=scores.entropy_N.sum(),
            rollout_kl=k3(batch.rollout_logprobs_N, old_logprobs_N).sum(),
            rollout_logprob_diff_mean=mismatch_N.abs().sum(),
        )
        if policy.clipped_dual_N is not None:
            tally.add(clip_fraction_dual=policy.clipped_dual_N.sum())
        # The extremes of a rank without tokens must not count.
        zero, infinity = policy.ratio_N.new_zeros(1), policy.ratio_N.new_full((1,), math.inf)
        tally.raise_to(
            ratio_max=torch.cat([policy.ratio_N, zero]).max(),
            rollout_ratio_max=torch.cat([rollout_ratio_N, zero]).max(),
        )
        tally.lower_to(ratio_min=torch.cat([policy.ratio_N, infinity]).min())

    def _divergence(self, batch: MicroBatch, scores: TokenScores, old_logprobs_N: Tensor) -> Tensor:
        assert batch.reference_logprobs_N is not None, "with a KL coefficient there is a reference"
        measured_N = old_logprobs_N if self._config.kl_in_reward else scores.logprobs_N
        kl_N = self._kl_estimator(measured_N, batch.reference_logprobs_N)
        require_result(kl_N, measured_N, f"`algorithm.kl_estimator`: `{self._config.kl_estimator}`")
        return kl_N

    def _rollout_weights(self, batch: MicroBatch, old_logprobs_N: Tensor, tally: TokenTally) -> Tensor | None:
        """Return the importance weights of a micro-batch; None if the loss has none."""
        correction = self._config.rollout_correction
        if correction.method == "none":
            return None
        weights_N, is_cut_N = rollout_weights(
            old_logprobs_N,
            batch.rollout_logprobs_N,
            batch.trajectory_N,
            method=correction.method,
            level=correction.level,
            min_ratio=correction.min_ratio,
            max_ratio=correction.max_ratio,
        )
        tally.add(rollout_weight_mean=weights_N.sum(), rollout_weight_cut_fraction=is_cut_N.sum())
        return weights_N
