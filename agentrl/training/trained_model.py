"""The part that actor and critic share: a sharded model, its optimiser, the updates of a step, and checkpoints.

The loss of a mini-batch is a sum over sampled tokens divided by their number over all ranks, so packing, accumulation and the
number of ranks do not change the gradient.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from agentrl.config.schema.run import ActorSection
from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.checkpoint import CheckpointWriter, load_checkpoint
from agentrl.training.model.flops import ModelShape
from agentrl.training.model.sharded_loading import ModelFiles
from agentrl.training.model.sharded_model import shard_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packing import MicroBatch, empty_micro_batch, fill_up, pack_trajectories, plan_rows
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.optimiser import apply_gradients, build_adamw, learning_rate_at, require_finite
from agentrl.training.update.tally import TokenTally
from agentrl.training.update.update_plan import UpdateShard
from agentrl.types import Trajectory

ADAM_BETAS = (0.9, 0.999)
"""AdamW's moment decays: PyTorch's defaults, as in the published recipes."""


class BatchCounts(NamedTuple):
    """Sizes of a mini-batch over all ranks."""

    scored: float
    trajectories: float
    tokens: float


class TrainedModel:
    """One rank of a model in training; every rank must make the same calls in the same order."""

    def __init__(self, name: str, actor: ActorSection) -> None:
        """Take the settings; `name` begins the names of metrics. `_shard` takes the model."""
        self._name = name
        self._actor = actor
        self._state: dict[str, float] = {"warmed_up_from": 0}
        """State that checkpoints hold beside weights and optimiser; the warm-up began after update `warmed_up_from`."""

    def _shard(
        self,
        model: nn.Module,
        files: ModelFiles | None,
        parallel: Parallel,
        *,
        dtype: torch.dtype,
        shape: ModelShape,
    ) -> None:
        """Shard the model over the ranks, and build its optimiser."""
        self._parallel = parallel
        self._checkpoints = CheckpointWriter()
        self._model = model
        shard_model(model, files, parallel, self._actor, dtype=dtype)
        self._packing = Packing(
            max_tokens=self._actor.max_tokens_per_micro_batch,
            share_prefixes=can_share_prefixes(parallel.device, dtype),
            cost=shape.cost,
        )
        self._optimiser = build_adamw(model, betas=ADAM_BETAS, weight_decay=self._actor.weight_decay)

    def _mini_batches(
        self,
        shard: UpdateShard,
        trajectories: Sequence[Trajectory],
        advantages: Sequence[Tensor],
        inputs: Sequence[TokenInputs],
    ) -> list[list[MicroBatch]]:
        """Pack each mini-batch of this rank into as many micro-batches as the rank with the most has."""
        members = [
            [i for i, item in enumerate(shard.items) if item.mini_batch == mini_batch]
            for mini_batch in range(shard.num_mini_batches)
        ]
        rows = [plan_rows([trajectories[i] for i in chosen], self._packing) for chosen in members]
        mini_batches = []
        for chosen, count in zip(members, self._parallel.max([len(each) for each in rows]), strict=True):
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

    def _train(
        self,
        mini_batches: Sequence[Sequence[MicroBatch]],
        step: int,
        loss_sum: Callable[[MicroBatch, BatchCounts, TokenTally], Tensor],
    ) -> dict[str, float]:
        """Run the optimiser updates of a step.

        `loss_sum` returns the loss summed over the tokens of a micro-batch, `[]`, and adds to the tally.

        Returns:
            The tally's means per token and extremes, `grad_norm` and `learning_rate`, the same on every rank.

        Raises:
            FloatingPointError: loss or gradient is not finite.
        """
        steps = step - int(self._state["warmed_up_from"])
        learning_rate = learning_rate_at(steps, self._actor, decay_steps=self._actor.decay_steps)
        tally, norms = TokenTally(), []
        for batches in [*mini_batches] * self._actor.epochs_per_step:
            sizes = [(len(batch.advantages_N), batch.num_trajectories, batch.tokens.num_tokens) for batch in batches]
            counts = BatchCounts(*self._parallel.sum([sum(each) for each in zip(*sizes, strict=True)]))
            if counts.scored == 0:
                raise ValueError(f"update {step}: a mini-batch has no sampled token; look at the response masks")
            total = torch.zeros((), dtype=torch.float64, device=self._parallel.device)
            for batch in self._parallel.gradient_passes(self._model, batches):
                loss = loss_sum(batch, counts, tally)
                # FSDP averages gradients over the ranks, and this loss is a sum over them.
                (loss * (self._parallel.world_size / counts.scored)).backward()
                total += loss.detach()
                tally.add(tokens=torch.tensor(len(batch.advantages_N)))
            [total_loss] = self._parallel.sum([total.item()])
            require_finite(f"loss of the {self._name}", total_loss, step)
            norms.append(
                apply_gradients(
                    self._model,
                    self._optimiser,
                    learning_rate=learning_rate,
                    max_grad_norm=self._actor.max_grad_norm,
                    step=step,
                )
            )
        metrics = tally.means(self._parallel)
        metrics |= {"grad_norm": sum(norms) / len(norms), "learning_rate": learning_rate}
        return {f"{self._name}/{name}": value for name, value in metrics.items()}

    def save(self, url: str) -> None:
        """Start writing this rank's part of a checkpoint (`CheckpointWriter.begin`); training may go on meanwhile."""
        self._checkpoints.begin(url, self._model, self._optimiser, extra=self._state)

    def saved(self) -> bool:
        """Return True once this rank's part is written (`CheckpointWriter.is_done`)."""
        return self._checkpoints.is_done()

    def load(self, url: str) -> None:
        """Load the checkpoint in the folder `url`, written by any number of ranks."""
        self._state = load_checkpoint(url, self._model, self._optimiser)

    def reset_optimiser(self, step: int) -> None:
        """Clear the optimiser's state, and restart the warm-up after update `step`."""
        self._optimiser.state.clear()
        self._state["warmed_up_from"] = step

    def close(self) -> None:
        """Finish the checkpoint that is being written."""
        self._checkpoints.wait()
