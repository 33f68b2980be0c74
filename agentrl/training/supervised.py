"""Supervised training on demonstrations: the cold start before reinforcement learning."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch

from agentrl.training.balance import Packing
from agentrl.training.batch import TokenisedExample, empty_tokens, fill_up, pack_examples
from agentrl.training.merged_attention import can_share_prefixes
from agentrl.training.model import decoder_layers, export_model, load_model
from agentrl.training.optimiser import apply_gradients, build_adamw, require_finite, warmup_cosine
from agentrl.training.parallel import Parallel, ParallelContext, full_tensors
from agentrl.training.scoring import score_tokens

if TYPE_CHECKING:
    from agentrl.config.schema import ModelSection


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedSchedule:
    """How fast to learn and for how long: linear warm-up, then a cosine down to a share of the peak."""

    learning_rate: float
    warmup_steps: int
    num_steps: int
    final_fraction: float
    """Share of `learning_rate` in the last step."""


class SupervisedTrainer:
    """Trains on batches of examples; the loss is the mean over the response tokens of the whole batch."""

    def __init__(
        self,
        model: "ModelSection",
        *,
        initial_weights: Literal["pretrained", "random"],
        schedule: SupervisedSchedule,
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
        max_tokens_per_micro_batch: int,
        seed: int,
        num_threads: int,
    ) -> None:
        """Take the settings; `setup` loads the model. `num_threads=0` takes every core."""
        self._source = model
        self._initial_weights: Literal["pretrained", "random"] = initial_weights
        self._schedule = schedule
        self._betas = betas
        self._weight_decay = weight_decay
        self._max_grad_norm = max_grad_norm
        self._max_tokens = max_tokens_per_micro_batch
        self._seed = seed
        self._num_threads = num_threads
        self._num_steps_done = 0

    def setup(self, context: ParallelContext) -> None:
        """Join the other ranks, build the model and shard it."""
        torch.set_num_threads(self._num_threads or len(os.sched_getaffinity(0)))
        torch.manual_seed(self._seed)
        self._parallel = Parallel(context)
        self._model = load_model(self._source, initial_weights=self._initial_weights)
        self._dtype: torch.dtype = getattr(torch, self._source.dtype)
        self._parallel.shard(self._model, decoder_layers(self._model), dtype=self._dtype)
        # Demonstrations with one system text and the same tools begin alike.
        self._packing = Packing(
            max_tokens=self._max_tokens, share_prefixes=can_share_prefixes(self._parallel.device, self._dtype)
        )
        self._optimiser = build_adamw(self._model.parameters(), betas=self._betas, weight_decay=self._weight_decay)

    def step(self, examples: Sequence[TokenisedExample]) -> dict[str, float]:
        """Make one update with this rank's share of a batch.

        Returns:
            `sft/loss` (nats per response token, before the update), `sft/grad_norm`, `sft/learning_rate`, `sft/tokens`
            (all packed tokens) and `sft/response_tokens`, over all ranks.

        Raises:
            FloatingPointError: the loss or the gradient is not finite.
            ValueError: no example has a response token.
        """
        step = self._num_steps_done + 1
        batches = pack_examples(examples, self._packing)
        [num_batches] = self._parallel.max([len(batches)])
        batches = fill_up(batches, empty_tokens(), int(num_batches))
        num_scored, num_tokens = self._parallel.sum(
            [sum(len(batch.targets_N) for batch in batches), sum(len(example.token_ids) for example in examples)]
        )
        if num_scored == 0:
            raise ValueError(f"update {step}: none of the examples has a response token; nothing can be learnt")
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._parallel.device)
        for batch in self._parallel.gradient_passes(self._model, batches):
            scores = score_tokens(
                self._model, batch.to(self._parallel.device, self._parallel.sequence), temperature=1.0
            )
            loss = -scores.logprobs_N.sum()
            # FSDP takes the mean of the ranks' gradients, and this loss is a sum over them.
            (loss * (self._parallel.world_size / num_scored)).backward()
            loss_sum += loss.detach()
        [total] = self._parallel.sum([loss_sum.item()])
        require_finite("loss", total, step)
        learning_rate = self.learning_rate(step)
        grad_norm = apply_gradients(
            self._model, self._optimiser, learning_rate=learning_rate, max_grad_norm=self._max_grad_norm, step=step
        )
        self._num_steps_done = step
        return {
            "sft/loss": total / num_scored,
            "sft/grad_norm": grad_norm,
            "sft/learning_rate": learning_rate,
            "sft/tokens": num_tokens,
            "sft/response_tokens": num_scored,
        }

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update `step`, from 1."""
        schedule = self._schedule
        return warmup_cosine(
            step,
            peak=schedule.learning_rate,
            warmup_steps=schedule.warmup_steps,
            num_steps=schedule.num_steps,
            final_fraction=schedule.final_fraction,
        )

    def export(self, path: str) -> None:
        """Write the model as a Hugging Face folder; every rank must call it."""
        on_rank_0 = self._parallel.rank == 0
        weights = {name: tensor for name, tensor in full_tensors(self._model, self._dtype) if on_rank_0}
        if on_rank_0:
            export_model(self._model, weights, self._source, path)
        self._parallel.barrier()

    def close(self) -> None:
        """Leave the process group."""
        self._parallel.close()
