"""The critic on one rank: predicts at each token the reward still to come.

An update: returns (`credit`) -> packed micro-batches -> per mini-batch, the clipped squared error and one optimiser step. As in
the actor, the loss is a mean over all sampled tokens of a mini-batch, so packing and ranks do not change it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agentrl.algorithms.value_loss import value_loss
from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.checkpoint import CheckpointWriter, load_checkpoint
from agentrl.training.model.decoder import shape_of
from agentrl.training.model.scalar_model import value_model
from agentrl.training.model.sharded_model import open_model, shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import PackedTokens, empty_tokens, fill_up, plan_rows
from agentrl.training.packing.sequence_parallel import SequenceGroup
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.role import RoleContext
from agentrl.training.scoring.trajectory_scores import score_trajectories
from agentrl.training.update.credit import CreditAssignment
from agentrl.training.update.optimiser import apply_gradients, build_adamw, learning_rate_at, require_finite
from agentrl.training.update.tally import TokenTally
from agentrl.training.update.update_plan import UpdateShard
from agentrl.types import Trajectory

if TYPE_CHECKING:
    from agentrl.config.schema.run import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueBatch:
    """One forward and backward pass: tokens, with value before the update and return of each scored token."""

    tokens: PackedTokens
    old_values_N: Tensor
    returns_N: Tensor

    def to(self, device: torch.device, sequence: SequenceGroup | None) -> "ValueBatch":
        """Return a copy on `device`; see `PackedTokens.to`."""
        return ValueBatch(
            tokens=self.tokens.to(device, sequence),
            old_values_N=self.old_values_N.to(device),
            returns_N=self.returns_N.to(device),
        )


class Critic:
    """One rank of the critic; every rank must make the same calls in the same order."""

    def __init__(self, config: "RunConfig", role: str) -> None:
        """Take the settings; `setup` loads the model."""
        del role
        self._config = config.critic
        self._source = config.model.model_copy(update={"path": config.critic.path or config.model.path})
        self._credit = CreditAssignment(config.algorithm)
        self._kl_coefficient = config.algorithm.kl_coefficient
        self._actor = config.actor
        self._warmed_up_from = 0
        """Update after which the warm-up began."""

    def setup(self, context: RoleContext) -> None:
        """Load the backbone, add a value head, and shard both over the ranks."""
        self._parallel = context.parallel
        self._checkpoints = CheckpointWriter()
        opened = open_model(self._source, needs_head=False, key="critic.path" if self._config.path else "model.path")
        dtype: torch.dtype = getattr(torch, self._source.dtype)
        self._packing = Packing(
            max_tokens=self._config.max_tokens_per_micro_batch,
            share_prefixes=self._actor.share_prefixes and can_share_prefixes(context.parallel.device, dtype),
            cost=shape_of(opened.model).cost,
        )
        self._model = value_model(opened.model)
        shard_model(self._model, opened.files, context.parallel, self._actor, dtype=dtype)
        self._optimiser = build_adamw(
            self._model.parameters(),
            betas=(self._config.adam_beta1, self._config.adam_beta2),
            weight_decay=self._config.weight_decay,
        )

    def values(self, trajectories: Sequence[Trajectory]) -> list[NDArray[np.float32]]:
        """Return the values before each scored token of each of this rank's trajectories."""
        return score_trajectories(self._model, trajectories, self._parallel, self._packing)

    def update(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> dict[str, float]:
        """Train on this rank's share of a step.

        Args:
            shard: plan; `shard.items[i]` describes `trajectories[i]`.
            trajectories: this rank's trajectories, maybe none.
            inputs: values before the update, and log-probabilities if the reward depends on them, one per trajectory.

        Returns:
            Metrics `critic/...`, the same on every rank. `critic/explained_variance` is that of the values before the update: 1
            is perfect, 0 no better than the mean of the returns.

        Raises:
            FloatingPointError: loss or gradient is not finite.
            ValueError: values are missing, or nothing was sampled.
        """
        started = time.perf_counter()
        learning_rate = learning_rate_at(shard.step - self._warmed_up_from, self._config)
        totals: dict[str, float] = {}
        norms = []
        for batches in self._mini_batches(shard, trajectories, inputs) * self._config.epochs_per_step:
            sums, norm = self._update_once(batches, step=shard.step, learning_rate=learning_rate)
            totals = {name: totals.get(name, 0.0) + value for name, value in sums.items()}
            norms.append(norm)
        return {
            **_metrics(totals),
            "critic/grad_norm": sum(norms) / len(norms),
            "critic/learning_rate": learning_rate,
            "critic/update_s": time.perf_counter() - started,
        }

    def _mini_batches(
        self, shard: UpdateShard, trajectories: Sequence[Trajectory], inputs: Sequence[TokenInputs]
    ) -> list[list[ValueBatch]]:
        """Pack each mini-batch of this rank into as many micro-batches as the rank with the most has."""
        kl_coefficient = self._kl_coefficient if shard.kl_coefficient is None else shard.kl_coefficient
        returns = self._credit.returns(shard, trajectories, inputs, kl_coefficient=kl_coefficient)
        members = [
            [i for i, item in enumerate(shard.items) if item.mini_batch == mini_batch]
            for mini_batch in range(shard.num_mini_batches)
        ]
        plans = [plan_rows([trajectories[i] for i in chosen], self._packing) for chosen in members]
        counts = self._parallel.max([len(plan.rows) for plan in plans])
        nothing = ValueBatch(tokens=empty_tokens(), old_values_N=torch.zeros(0), returns_N=torch.zeros(0))
        mini_batches = []
        for chosen, count in zip(members, counts, strict=True):
            batches = _pack(
                [trajectories[i] for i in chosen],
                [inputs[i] for i in chosen],
                [returns[i] for i in chosen],
                packing=self._packing,
                min_rows=int(count),
            )
            batches = fill_up(batches, nothing, int(count))
            mini_batches.append([batch.to(self._parallel.device, self._parallel.sequence) for batch in batches])
        return mini_batches

    def _update_once(
        self, batches: Sequence[ValueBatch], *, step: int, learning_rate: float
    ) -> tuple[dict[str, float], float]:
        """Run one optimiser update; return sums over its tokens, and the norm of the gradient."""
        [num_scored] = self._parallel.sum([sum(len(batch.returns_N) for batch in batches)])
        if num_scored == 0:
            raise ValueError(f"update {step}: a mini-batch has no sampled token; look at the response masks")
        tally = TokenTally()
        for batch in self._parallel.gradient_passes(self._model, batches):
            values_N = self._model(batch.tokens)
            result = value_loss(values_N, batch.old_values_N, batch.returns_N, clip=self._config.value_clip)
            # FSDP averages gradients over the ranks, and this loss is a sum over them.
            (result.loss_N.sum() * (self._parallel.world_size / num_scored)).backward()
            returns_N = batch.returns_N.double()
            tally.add(
                loss=result.loss_N.sum(),
                clip_fraction=result.clipped_N.sum(),
                value_mean=batch.old_values_N.sum(),
                return_mean=returns_N.sum(),
                return_square=returns_N.square().sum(),
                error=(returns_N - batch.old_values_N).sum(),
                error_square=(returns_N - batch.old_values_N).square().sum(),
            )
        sums = tally.reduce(self._parallel).sums
        require_finite("loss of the critic", sums["loss"], step)
        norm = apply_gradients(
            self._model,
            self._optimiser,
            learning_rate=learning_rate,
            max_grad_norm=self._config.max_grad_norm,
            step=step,
        )
        return sums | {"tokens": num_scored}, norm

    def save(self, url: str) -> None:
        """Start writing this rank's part of a checkpoint, as `Actor.save` does."""
        self._checkpoints.begin(url, self._model, self._optimiser, extra={"warmed_up_from": self._warmed_up_from})

    def saved(self) -> bool:
        """Return True once this rank's part is written; raises as `save` does."""
        return self._checkpoints.is_done()

    def load(self, url: str) -> None:
        """Load the checkpoint in the folder `url`, written by any number of ranks."""
        extra = load_checkpoint(url, self._model, self._optimiser)
        self._warmed_up_from = extra["warmed_up_from"]

    def reset_optimiser(self, step: int) -> None:
        """Clear the optimiser's state, and restart the warm-up after update `step`."""
        self._optimiser.state.clear()
        self._warmed_up_from = step

    def close(self) -> None:
        """Finish the checkpoint that is being written."""
        self._checkpoints.wait()


def _pack(
    trajectories: Sequence[Trajectory],
    inputs: Sequence[TokenInputs],
    returns: Sequence[Tensor],
    *,
    packing: Packing,
    min_rows: int,
) -> list[ValueBatch]:
    """Pack trajectories into micro-batches (see `plan_rows`)."""
    plan = plan_rows(trajectories, packing, min_rows=min_rows)
    return [
        ValueBatch(
            tokens=plan.pack(row, trajectories),
            old_values_N=torch.cat([_values(trajectories[i], inputs[i]) for i in members]),
            returns_N=torch.cat([returns[i] for i in members]),
        )
        for row, members in enumerate(plan.members)
    ]


def _values(trajectory: Trajectory, inputs: TokenInputs) -> Tensor:
    if inputs.values is None:
        raise ValueError(f"trajectory `{trajectory.trajectory_id}`: the critic's values before the update are missing")
    return torch.tensor(inputs.values)


def _metrics(totals: dict[str, float]) -> dict[str, float]:
    """Return the metrics of a step from sums over its tokens."""
    means = {name: value / totals["tokens"] for name, value in totals.items() if name != "tokens"}
    spread = means.pop("return_square") - means["return_mean"] ** 2
    unexplained = means.pop("error_square") - means.pop("error") ** 2
    explained = 1.0 - unexplained / spread if spread > 0 else 0.0
    return {f"critic/{name}": value for name, value in means.items()} | {"critic/explained_variance": explained}
