"""The critic on one rank: predicts at each token the reward still to come.

An update: returns (`credit`) -> packed micro-batches -> per mini-batch, the clipped squared error and one optimiser step.
"""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algorithms.value_loss import value_loss
from agentrl.training.model.decoder import shape_of
from agentrl.training.model.scalar_model import value_model
from agentrl.training.model.sharded_model import open_model
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_sequences
from agentrl.training.trained_model import BatchCounts, TrainedModel
from agentrl.training.update.credit import CreditAssignment
from agentrl.training.update.tally import TokenTally
from agentrl.training.update.update_plan import UpdateShard
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


class Critic(TrainedModel):
    """One rank of the critic; every rank must make the same calls in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        del role
        self._critic = config.critic
        super().__init__("critic", config.actor.model_copy(update={"learning_rate": self._critic.learning_rate}))
        self._source = config.model.model_copy(update={"path": config.critic.path or config.model.path})
        self._credit = CreditAssignment(config.algorithm)
        self._kl_coefficient = config.algorithm.kl_coefficient

    def setup(self, parallel: Parallel) -> None:
        """Load the backbone, add a value head, and shard both over the ranks."""
        opened = open_model(self._source, needs_head=False, key="critic.path" if self._critic.path else "model.path")
        dtype: torch.dtype = getattr(torch, self._source.dtype)
        shape = shape_of(opened.model)
        self._shard(value_model(opened.model), opened.files, parallel, dtype=dtype, shape=shape)

    def values(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the values before each scored token of each of this rank's trajectories."""
        return score_sequences(self._model, trajectories, self._parallel, self._packing)

    def update(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> dict[str, float]:
        """Train on this rank's share of a step, as `Actor.update` does; `inputs` have the values before the update.

        Returns:
            Metrics `critic/...`, the same on every rank. `critic/explained_variance` is that of the values before the update: 1
            is perfect, 0 no better than the mean of the returns.
        """
        started = time.perf_counter()
        kl_coefficient = self._kl_coefficient if shard.kl_coefficient is None else shard.kl_coefficient
        returns = self._credit.returns(shard, trajectories, inputs, kl_coefficient=kl_coefficient)
        metrics = self._train(self._mini_batches(shard, trajectories, returns, inputs), shard.step, self._loss)
        spread = metrics.pop("critic/return_square") - metrics["critic/return_mean"] ** 2
        unexplained = metrics.pop("critic/error_square") - metrics.pop("critic/error") ** 2
        metrics["critic/explained_variance"] = 1.0 - unexplained / spread if spread > 0 else 0.0
        metrics["critic/update_s"] = time.perf_counter() - started
        return metrics

    def _loss(self, batch: MicroBatch, counts: BatchCounts, tally: TokenTally) -> Tensor:
        assert batch.old_values_N is not None, "`CreditAssignment.returns` needs values"
        values_N = self._model(batch.tokens)
        loss_N, is_clipped_N = value_loss(
            values_N, batch.old_values_N, batch.advantages_N, clip=self._critic.value_clip
        )
        returns_N = batch.advantages_N.double()
        tally.add(
            loss=loss_N.sum(),
            clip_fraction=is_clipped_N.sum(),
            value_mean=batch.old_values_N.sum(),
            return_mean=returns_N.sum(),
            return_square=returns_N.square().sum(),
            error=(returns_N - batch.old_values_N).sum(),
            error_square=(returns_N - batch.old_values_N).square().sum(),
        )
        return loss_N.sum()
