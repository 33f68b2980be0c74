"""The actor: the policy in training on one rank, from trajectories and rewards to new weights.

An update: advantages (`credit`) -> packed micro-batches -> old log-probabilities -> per mini-batch, loss and gradient over
its micro-batches and one optimiser step (`trained_model`).
"""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algorithms.kl_divergence import next_kl_coefficient
from agentrl.errors import EngineError
from agentrl.training.export import export_policy, insert_adapters
from agentrl.training.model.decoder import decoder_layers, shape_of
from agentrl.training.model.flops import measured_peak_flops, synchronize
from agentrl.training.model.router_balance import require_router_loss
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.model.sharded_model import open_model
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import MicroBatch
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.scoring.token_logprobs import score_sequences, score_tokens
from agentrl.training.trained_model import BatchCounts, TrainedModel
from agentrl.training.update.credit import CreditAssignment
from agentrl.training.update.objective import Objective
from agentrl.training.update.tally import TokenTally
from agentrl.training.update.update_plan import UpdateShard
from agentrl.training.weight_publisher import WeightPublishing
from agentrl.types import Trajectory
from agentrl.weight_sync.base import Transport, WeightSource

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


class Actor(TrainedModel):
    """One rank of the policy in training; every rank must make the same calls in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        super().__init__("actor", config.actor)
        self._config = config
        self._credit = CreditAssignment(config.algorithm)
        self._objective = Objective(
            config.algorithm,
            max_response_tokens=config.rollout.max_response_tokens,
            router_coefficient=config.actor.router_aux_loss_coef,
        )
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        self._state["kl_coefficient"] = config.algorithm.kl_coefficient

    def setup(self, parallel: Parallel) -> None:
        """Load the model and shard it over the ranks."""
        config = self._config
        torch.manual_seed(config.run.seed)
        opened, where = open_model(config.model), f"`model.path`: {config.model.path}"
        if self._actor.router_aux_loss_coef:
            require_router_loss(opened.model, where)
        if config.rollout.replay_routing:
            replay_routing(opened.model, decoder_layers(opened.model), where)
        self._shape = shape_of(opened.model)
        self._adapters = insert_adapters(opened, config.actor.lora, config.model, key="actor.lora")
        if self._adapters is not None:
            self._shape = replace(self._shape, is_frozen=True)
        self._shard(opened.model, opened.files, parallel, dtype=self._dtype, shape=self._shape)
        if self._adapters is not None:
            self._adapters.reset(config.run.seed)
        self._weights = WeightPublishing(
            self._model, parallel, dtype=self._dtype, checked=config.cluster.check_weights, adapters=self._adapters
        )
        self._peak_flops = measured_peak_flops(parallel.device, self._dtype)

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the scored tokens of each of this rank's trajectories."""
        return score_sequences(self._score, trajectories, self._parallel, self._packing)

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return `logprobs` of the base model, without LoRA's factors."""
        assert self._adapters is not None, "without LoRA the reference is a separate model"
        with self._adapters.disabled():
            return self.logprobs(trajectories)

    @torch.no_grad()
    def _score(self, tokens: PackedTokens) -> Tensor:
        return score_tokens(self._model, tokens, temperature=self._config.rollout.temperature).logprobs_N

    def update(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> dict[str, float]:
        """Train on this rank's share of a step; return the metrics `actor/...`, the same on every rank.

        `shard.items[i]` describes `trajectories[i]`, and `inputs[i]` has the values of other components that the loss needs.

        Raises:
            FloatingPointError: loss or gradient is not finite.
            ValueError: a sampled token has no log-probability.
        """
        started = time.perf_counter()
        kl_coefficient = self.kl_coefficient()
        advantages = self._credit.advantages(shard, trajectories, inputs, self._parallel, kl_coefficient=kl_coefficient)
        mini_batches = self._mini_batches(shard, trajectories, advantages, inputs)
        packed = time.perf_counter()
        mini_batches = self._with_old_logprobs(mini_batches)
        synchronize(self._parallel.device)
        scored = time.perf_counter()
        metrics = self._train(mini_batches, shard.step, self._loss)
        metrics["actor/packing_s"] = packed - started
        metrics["actor/old_logprobs_s"] = scored - packed
        metrics["actor/gradients_s"] = time.perf_counter() - scored
        metrics |= self._work_metrics(trajectories, mini_batches, started)
        if kl_coefficient:
            metrics["actor/kl_coefficient"] = kl_coefficient
            self._adapt_kl_coefficient(metrics, num_trajectories=sum(map(len, shard.group_rewards)))
        return metrics

    def _with_old_logprobs(self, mini_batches: Sequence[Sequence[MicroBatch]]) -> list[list[MicroBatch]]:
        """Return the batches with log-probabilities before the update; without, if the update's own pass is the first."""
        if self._config.algorithm.kl_in_reward:  # they are inputs, because the reward depends on them
            return [list(batches) for batches in mini_batches]
        is_first = len(mini_batches) * self._actor.epochs_per_step == 1
        return [
            [replace(batch, old_logprobs_N=None if is_first else self._score(batch.tokens)) for batch in batches]
            for batches in mini_batches
        ]

    def _loss(self, batch: MicroBatch, counts: BatchCounts, tally: TokenTally) -> Tensor:
        scores = score_tokens(
            self._model,
            batch.tokens,
            temperature=self._config.rollout.temperature,
            entropy_gradient=self._config.algorithm.entropy_coefficient > 0,
            router_loss=self._actor.router_aux_loss_coef > 0,
        )
        old_logprobs_N = batch.old_logprobs_N
        if old_logprobs_N is None:
            # With a single mini-batch the weights are still those before the update.
            old_logprobs_N = scores.logprobs_N.detach()
        return self._objective.loss(
            batch,
            scores,
            old_logprobs_N=old_logprobs_N,
            mean_length=counts.scored / counts.trajectories,
            scored_share=counts.scored / counts.tokens,
            kl_coefficient=self.kl_coefficient(),
            tally=tally,
        )

    def _work_metrics(
        self, trajectories: Sequence[Trajectory], mini_batches: Sequence[Sequence[MicroBatch]], started: float
    ) -> dict[str, float]:
        """Return the amount and speed of all ranks' work in an update that began at `started`."""
        rows = [batch.tokens for batches in mini_batches for batch in batches]
        computed = sum(sum(row.layout.lengths) for row in rows)
        num_tokens, num_scored, num_computed, flops = self._parallel.sum(
            [
                sum(len(trajectory.token_ids) for trajectory in trajectories),
                sum(row.num_scored for row in rows),
                computed,
                sum(self._shape.flops(row) for row in rows) * self._actor.epochs_per_step,
            ]
        )
        memory_bytes, most_computed = self._parallel.max([self._parallel.peak_memory_bytes(), computed])
        update_s = time.perf_counter() - started
        return {
            "actor/tokens": num_tokens,
            "actor/response_tokens": num_scored,
            "actor/update_s": update_s,
            "actor/tokens_per_s": num_tokens / update_s,
            "actor/mfu": flops / update_s / (self._peak_flops * self._parallel.world_size),
            "actor/computed_tokens": num_computed,
            "actor/rank_imbalance": most_computed * self._parallel.num_shares / num_computed,
            "actor/memory_bytes_max": memory_bytes,
        }

    def kl_coefficient(self) -> float:
        """Return the KL coefficient of the next update."""
        return self._state["kl_coefficient"]

    def _adapt_kl_coefficient(self, metrics: dict[str, float], *, num_trajectories: int) -> None:
        if self._config.algorithm.kl_target > 0:
            self._state["kl_coefficient"] = next_kl_coefficient(
                self.kl_coefficient(),
                divergence=metrics["actor/kl_reference"] * metrics["actor/response_tokens"] / num_trajectories,
                target=self._config.algorithm.kl_target,
                num_trajectories=num_trajectories,
            )

    def publish_weights(
        self, transport: Transport = Transport.SHARED_MEMORY, receivers: Sequence[str] = ()
    ) -> WeightSource | None:
        """Publish the weights in the engines' type; see `WeightPublishing.publish`."""
        return self._weights.publish(transport, receivers)

    def send_weights(self, source: WeightSource) -> str | None:
        """Send the weights that `publish_weights` announced as a stream; every rank must be called.

        Returns the failed receivers, as text, or None: a lost engine must not end the training.
        """
        try:
            self._weights.send(source)
        except EngineError as error:
            return str(error)
        return None

    def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder (`export_policy`); every rank must call it."""
        export_policy(self._model, self._adapters, self._config.model, path, writes=self._parallel.rank == 0)
        self._parallel.barrier()

    def close(self) -> None:
        """Finish the checkpoint that is being written, and release the shared memory."""
        super().close()
        self._weights.close()
