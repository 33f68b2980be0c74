"""The actor: the policy in training on one rank, from trajectories and rewards to new weights.

An update: advantages (`credit`) -> packed micro-batches -> old log-probabilities -> per mini-batch, loss and gradient over
its micro-batches and one optimiser step. The loss is a sum over sampled tokens divided by their number in the whole
mini-batch over all ranks, so packing, accumulation and the number of ranks do not change the gradient.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algorithms.kl_control import next_kl_coefficient
from agentrl.errors import EngineError
from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.attention.packed import num_query_rows
from agentrl.training.checkpoint import CheckpointWriter, load_checkpoint
from agentrl.training.model.decoder import decoder_layers, export_model, shape_of
from agentrl.training.model.flops import measured_peak_flops, synchronize
from agentrl.training.model.router_balance import require_router_loss
from agentrl.training.model.router_replay import replay_routing
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import (
    MicroBatch,
    PackedTokens,
    empty_micro_batch,
    fill_up,
    pack_trajectories,
    plan_rows,
)
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import full_tensors
from agentrl.training.role import RoleContext
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.scoring.trajectory_scores import score_trajectories
from agentrl.training.update.credit import CreditAssignment
from agentrl.training.update.objective import Objective
from agentrl.training.update.optimiser import apply_gradients, build_adamw, learning_rate_at, require_finite
from agentrl.training.update.tally import TokenTally, UpdateStats
from agentrl.training.update.update_plan import UpdateShard
from agentrl.training.weight_publisher import WeightPublishing
from agentrl.types import Trajectory
from agentrl.weight_sync.base import Transport, WeightSource

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig
    from agentrl.training.model.lora import Adapters


class Actor:
    """One rank of the policy in training; every rank must make the same calls in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        """Take the settings; `setup` loads the model.

        Raises:
            ValueError: the temperature is 0, at which log-probabilities are undefined.
        """
        self._temperature = config.rollout.temperature
        if self._temperature <= 0:
            raise ValueError(
                f"{role}: temperature {self._temperature} cannot be trained at; set `rollout.temperature` above 0"
            )
        self._source = config.model
        self._config = config.actor
        self._algorithm = config.algorithm
        self._credit = CreditAssignment(config.algorithm)
        self._objective = Objective(
            config.algorithm,
            max_response_tokens=config.rollout.max_response_tokens,
            router_coefficient=config.actor.router_aux_loss_coef,
        )
        self._seed = config.run.seed
        self._replays_routing = config.rollout.replay_routing
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        self._kl_coefficient = config.algorithm.kl_coefficient
        self._checks_weights = config.cluster.check_weights
        self._adapters: Adapters | None = None
        self._warmed_up_from = 0
        """Update after which the warm-up began."""

    def setup(self, context: RoleContext) -> None:
        """Load the model and shard it over the ranks."""
        self._parallel = parallel = context.parallel
        torch.manual_seed(self._seed)
        self._checkpoints = CheckpointWriter()
        opened = open_model(self._source)
        self._model = opened.model
        if self._config.router_aux_loss_coef:
            require_router_loss(self._model, f"`model.path`: {self._source.path}")
        if self._replays_routing:
            replay_routing(self._model, decoder_layers(self._model), f"`model.path`: {self._source.path}")
        self._shape = shape_of(self._model)
        if self._config.lora.rank > 0:
            from agentrl.training.model.lora import Adapters

            self._adapters = Adapters(opened, self._config.lora, self._source, key="actor.lora")
            self._shape = replace(self._shape, is_frozen=True)
        shard_model(self._model, opened.files, parallel, self._config, dtype=self._dtype)
        if self._adapters is not None:
            self._adapters.reset(self._seed)
        self._weights = WeightPublishing(
            self._model, parallel, dtype=self._dtype, checked=self._checks_weights, adapters=self._adapters
        )
        self._peak_flops = measured_peak_flops(parallel.device, self._dtype)
        self._packing = Packing(
            max_tokens=self._config.max_tokens_per_micro_batch,
            share_prefixes=self._config.share_prefixes and can_share_prefixes(parallel.device, self._dtype),
            cost=self._shape.cost,
        )
        self._optimiser = build_adamw(
            self._model.parameters(),
            betas=(self._config.adam_beta1, self._config.adam_beta2),
            weight_decay=self._config.weight_decay,
        )

    def logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the log-probabilities of the scored tokens of each of this rank's trajectories."""
        return score_trajectories(self._score, trajectories, self._parallel, self._packing)

    def reference_logprobs(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return `logprobs` of the base model, without LoRA's factors."""
        assert self._adapters is not None, "without LoRA the reference is a separate model"
        with self._adapters.disabled():
            return self.logprobs(trajectories)

    def update(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> dict[str, float]:
        """Train on this rank's share of a step.

        Args:
            shard: plan; `shard.items[i]` describes `trajectories[i]`.
            trajectories: this rank's trajectories, maybe none.
            inputs: values of other components that the loss needs, one per trajectory.

        Returns:
            Metrics `actor/...`, the same on every rank.

        Raises:
            FloatingPointError: loss or gradient is not finite.
            ValueError: a sampled token has no log-probability, or nothing was sampled.
        """
        started = time.perf_counter()
        mini_batches = self._mini_batches(shard, trajectories, inputs)
        packed = time.perf_counter()
        old_logprobs = self._old_logprobs(mini_batches)
        synchronize(self._parallel.device)
        scored = time.perf_counter()
        kl_coefficient = self._kl_coefficient
        learning_rate = learning_rate_at(shard.step - self._warmed_up_from, self._config)
        stats = UpdateStats(num_epochs=self._config.epochs_per_step)
        for batches, old in [*zip(mini_batches, old_logprobs, strict=True)] * self._config.epochs_per_step:
            self._update_once(
                batches,
                old,
                step=shard.step,
                learning_rate=learning_rate,
                kl_coefficient=kl_coefficient,
                stats=stats,
            )
        metrics = stats.metrics()
        if kl_coefficient:
            metrics["actor/kl_coefficient"] = kl_coefficient
            self._adapt_kl_coefficient(metrics, num_trajectories=sum(map(len, shard.group_rewards)))
        return {
            **metrics,
            "actor/learning_rate": learning_rate,
            "actor/packing_s": packed - started,
            "actor/old_logprobs_s": scored - packed,
            "actor/gradients_s": time.perf_counter() - scored,
            **self._work_metrics(trajectories, mini_batches, started),
        }

    def _work_metrics(
        self, trajectories: Sequence[Trajectory], mini_batches: Sequence[Sequence[MicroBatch]], started: float
    ) -> dict[str, float]:
        """Return the amount and speed of all ranks' work in an update that began at `started`."""
        packed = [batch.tokens for batches in mini_batches for batch in batches]
        computed = sum(len(row.token_ids_T) for row in packed)
        num_tokens, num_computed, num_rows, flops = self._parallel.sum(
            [
                sum(len(trajectory.token_ids) for trajectory in trajectories),
                computed,
                sum(num_query_rows(row.local.layout, self._dtype) for row in packed),
                sum(self._shape.flops(row) for row in packed) * self._config.epochs_per_step,
            ]
        )
        memory_bytes, most_computed = self._parallel.max([self._parallel.peak_memory_bytes(), computed])
        update_s = time.perf_counter() - started
        return {
            "actor/tokens": num_tokens,
            "actor/update_s": update_s,
            "actor/tokens_per_s": num_tokens / update_s,
            "actor/mfu": flops / update_s / (self._peak_flops * self._parallel.world_size),
            "actor/computed_tokens": num_computed,
            "actor/attention_padding": num_rows / num_computed - 1,
            "actor/rank_imbalance": most_computed * self._parallel.num_shares / num_computed,
            "actor/memory_bytes_max": memory_bytes,
        }

    def kl_coefficient(self) -> float:
        """Return the KL coefficient of the next update, the same on every rank."""
        return self._kl_coefficient

    def _adapt_kl_coefficient(self, metrics: Mapping[str, float], *, num_trajectories: int) -> None:
        if self._algorithm.kl_target > 0:
            divergence = metrics["actor/kl_reference"] * metrics["actor/response_tokens"] / num_trajectories
            self._kl_coefficient = next_kl_coefficient(
                self._kl_coefficient,
                divergence=divergence,
                target=self._algorithm.kl_target,
                num_trajectories=num_trajectories,
                horizon=self._algorithm.kl_horizon,
            )

    def _mini_batches(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> list[list[MicroBatch]]:
        """Pack each mini-batch of this rank into as many micro-batches as the rank with the most has."""
        advantages = self._credit.advantages(
            shard, trajectories, inputs, self._parallel, kl_coefficient=self._kl_coefficient
        )
        members = [
            [i for i, item in enumerate(shard.items) if item.mini_batch == mini_batch]
            for mini_batch in range(shard.num_mini_batches)
        ]
        plans = [plan_rows([trajectories[i] for i in chosen], self._packing) for chosen in members]
        counts = self._parallel.max([len(plan.rows) for plan in plans])
        mini_batches = []
        for chosen, count in zip(members, counts, strict=True):
            batches = pack_trajectories(
                [trajectories[i] for i in chosen],
                [advantages[i] for i in chosen],
                [inputs[i] for i in chosen],
                packing=self._packing,
                min_rows=int(count),
            )
            batches = fill_up(batches, empty_micro_batch(), int(count))
            mini_batches.append([batch.to(self._parallel.device, self._parallel.sequence) for batch in batches])
        return mini_batches

    def _old_logprobs(self, mini_batches: Sequence[Sequence[MicroBatch]]) -> list[list[Tensor | None]]:
        """Return log-probabilities before the update; None if the update's own pass is the first."""
        if self._algorithm.kl_in_reward:  # the reward depends on them
            return [[batch.old_logprobs_N for batch in batches] for batches in mini_batches]
        if len(mini_batches) * self._config.epochs_per_step > 1:
            return [[self._score(batch.tokens) for batch in batches] for batches in mini_batches]
        return [[None] * len(batches) for batches in mini_batches]

    @torch.no_grad()
    def _score(self, tokens: PackedTokens) -> Tensor:
        return score_tokens(self._model, tokens, temperature=self._temperature).logprobs_N

    def _update_once(
        self,
        batches: Sequence[MicroBatch],
        old_logprobs: Sequence[Tensor | None],
        *,
        step: int,
        learning_rate: float,
        kl_coefficient: float,
        stats: UpdateStats,
    ) -> None:
        """Run one optimiser update over the micro-batches of a mini-batch."""
        sizes = [(len(batch.advantages_N), batch.num_trajectories, batch.tokens.num_tokens) for batch in batches]
        num_scored, num_trajectories, num_tokens = self._parallel.sum([sum(each) for each in zip(*sizes, strict=True)])
        if num_scored == 0:
            raise ValueError(f"update {step}: a mini-batch has no sampled token; look at the response masks")
        tally = TokenTally()
        pairs = [*zip(batches, old_logprobs, strict=True)]
        for batch, old_logprobs_N in self._parallel.gradient_passes(self._model, pairs):
            loss_sum = self._loss(
                batch,
                old_logprobs_N,
                mean_length=num_scored / num_trajectories,
                scored_share=num_scored / num_tokens,
                kl_coefficient=kl_coefficient,
                tally=tally,
            )
            # FSDP averages gradients over the ranks, and this loss is a sum over them.
            (loss_sum * (self._parallel.world_size / num_scored)).backward()
        reduced = tally.reduce(self._parallel)
        require_finite("loss", reduced.sums["loss"], step)
        grad_norm = apply_gradients(
            self._model,
            self._optimiser,
            learning_rate=learning_rate,
            max_grad_norm=self._config.max_grad_norm,
            step=step,
        )
        stats.add(reduced, num_tokens=num_scored, grad_norm=grad_norm)

    def _loss(
        self,
        batch: MicroBatch,
        old_logprobs_N: Tensor | None,
        *,
        mean_length: float,
        scored_share: float,
        kl_coefficient: float,
        tally: TokenTally,
    ) -> Tensor:
        """Return the loss summed over the tokens of a micro-batch, and add its metrics to `tally`."""
        scores = score_tokens(
            self._model,
            batch.tokens,
            temperature=self._temperature,
            entropy_gradient=self._algorithm.entropy_coefficient > 0,
            router_loss=self._config.router_aux_loss_coef > 0,
        )
        if old_logprobs_N is None:
            # With a single mini-batch the weights are still those before the update.
            old_logprobs_N = scores.logprobs_N.detach()
        return self._objective.loss(
            batch,
            scores,
            old_logprobs_N=old_logprobs_N,
            mean_length=mean_length,
            scored_share=scored_share,
            kl_coefficient=kl_coefficient,
            tally=tally,
        )

    def publish_weights(
        self, transport: Transport = Transport.SHARED_MEMORY, receivers: Sequence[str] = ()
    ) -> WeightSource | None:
        """Publish the weights in the engines' type; see `WeightPublishing.publish`."""
        return self._weights.publish(transport, receivers)

    def send_weights(self, source: WeightSource) -> str | None:
        """Send the weights that `publish_weights` announced as a stream; every rank must be called.

        Returns:
            The failed receivers, as text; None if all took the weights. A lost engine must not end the training.
        """
        try:
            self._weights.send(source)
        except EngineError as error:
            return str(error)
        return None

    def _whole_weights(self) -> Iterator[tuple[str, Tensor]]:
        if self._adapters is not None:
            return self._adapters.merged_tensors(self._dtype)
        return full_tensors(self._model, self._dtype)

    def save(self, url: str) -> None:
        """Start writing this rank's part of a checkpoint into the folder `url`; training may go on meanwhile.

        The folder is complete when `saved` is true on all ranks.

        Raises:
            CheckpointError: the previous checkpoint could not be written.
        """
        extra = {"warmed_up_from": self._warmed_up_from, "kl_coefficient": self._kl_coefficient}
        self._checkpoints.begin(url, self._model, self._optimiser, extra=extra)

    def saved(self) -> bool:
        """Return True once this rank's part is written; raises as `save` does."""
        return self._checkpoints.is_done()

    def load(self, url: str) -> None:
        """Load the checkpoint in the folder `url`, written by any number of ranks."""
        extra = load_checkpoint(url, self._model, self._optimiser)
        self._warmed_up_from = extra["warmed_up_from"]
        self._kl_coefficient = extra["kl_coefficient"]

    def reset_optimiser(self, step: int) -> None:
        """Clear the optimiser's state, and restart the warm-up after update `step`."""
        self._optimiser.state.clear()
        self._warmed_up_from = step

    def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder, with its tokenizer, in the engines' type.

        LoRA's factors are merged into the weights, and also written separately into the subfolder `adapter`.
        """
        on_rank_0 = self._parallel.rank == 0
        weights = {name: tensor for name, tensor in self._whole_weights() if on_rank_0}
        if on_rank_0:
            export_model(self._model, weights, self._source, path)
        if self._adapters is not None:
            self._adapters.export(f"{path}/adapter", writes=on_rank_0)
        self._parallel.barrier()

    def close(self) -> None:
        """Finish the checkpoint that is being written, and release the shared memory."""
        self._checkpoints.wait()
        self._weights.close()
