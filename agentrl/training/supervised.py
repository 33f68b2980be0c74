"""Supervised training on demonstrations: the cold start before reinforcement learning."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from agentrl.training.attention.merged import can_share_prefixes
from agentrl.training.checkpoint import CheckpointWriter, load_checkpoint
from agentrl.training.export import export_policy, insert_adapters
from agentrl.training.model.decoder import decoder_layers, load_model, recompute_activations
from agentrl.training.model.sharded_loading import materialise
from agentrl.training.model.sharded_model import OpenedModel, open_model
from agentrl.training.packing.families import Packing
from agentrl.training.packing.packed_tokens import PackedTokens
from agentrl.training.packing.packing import pack_examples
from agentrl.training.packing.sequences import TokenisedExample
from agentrl.training.parallel import Parallel, ParallelContext, open_store
from agentrl.training.scoring.token_logprobs import score_tokens
from agentrl.training.update.optimiser import apply_gradients, build_adamw, learning_rate_at, require_finite

if TYPE_CHECKING:
    from agentrl.config.schema.algorithm import LoraSection
    from agentrl.config.schema.run import ModelSection
    from agentrl.config.schema.sft import SftTrainingSection

_ADAM_BETAS = (0.9, 0.98)
"""AdamW's moment decays; a warm start is short, so its second moment forgets faster than that of RL."""


class SupervisedTrainer:
    """Trainer in one process; the loss is the mean over the response tokens of a batch."""

    def __init__(
        self, model: "ModelSection", training: "SftTrainingSection", *, num_steps: int, lora: "LoraSection"
    ) -> None:
        """Form a process group of its own; `setup` loads the model. `num_steps` are those of the whole run."""
        self._source = model
        self._config = training
        self._num_steps = num_steps
        self._lora = lora
        self._num_steps_done = 0
        store = open_store("127.0.0.1")
        context = ParallelContext(
            rank=0,
            world_size=1,
            master_addr="127.0.0.1",
            master_port=store.port,
            store=store,
            num_threads=training.num_threads or len(os.sched_getaffinity(0)),
        )
        self._parallel = Parallel(context)

    def setup(self) -> None:
        """Build the model and its optimiser."""
        torch.manual_seed(self._config.seed)
        self._checkpoints = CheckpointWriter()
        dtype: torch.dtype = getattr(torch, self._source.dtype)
        if self._config.initial_weights == "random":
            opened = OpenedModel(model=load_model(self._source, initial_weights="random"), files=None)
        else:
            opened = open_model(self._source)
        self._model = opened.model
        self._adapters = insert_adapters(opened, self._lora, self._source, key="lora")
        if self._config.activation_checkpointing:
            recompute_activations(self._model)
        self._parallel.shard(self._model, decoder_layers(self._model), dtype=dtype)
        # Demonstrations with one system text and the same tools begin alike.
        self._packing = Packing(
            max_tokens=self._config.max_tokens_per_micro_batch,
            share_prefixes=can_share_prefixes(self._parallel.device, dtype),
        )
        if opened.files is not None:
            materialise(self._model, self._parallel.device)
            opened.files.read_into(self._model)
        if self._adapters is not None:
            self._adapters.reset(self._config.seed)
        self._optimiser = build_adamw(self._model, betas=_ADAM_BETAS, weight_decay=self._config.weight_decay)

    def describe(self) -> str:
        """Describe weights and device in one line."""
        weights = list(self._model.parameters())
        total = sum(weight.numel() for weight in weights)
        trained = sum(weight.numel() for weight in weights if weight.requires_grad)
        device = self._parallel.device
        where = f"{torch.get_num_threads()} CPU threads" if device.type == "cpu" else str(device)
        return f"{trained:,} of {total:,} weights trained in {self._source.dtype} on {where}"

    def step(self, examples: Sequence[TokenisedExample]) -> dict[str, float]:
        """Run one update with a batch.

        Returns:
            `sft/loss` (nats per response token, before the update), `sft/grad_norm`, `sft/learning_rate`, `sft/tokens`
            and `sft/response_tokens`.

        Raises:
            FloatingPointError: the loss or the gradient is not finite.
            ValueError: no example has a response token.
        """
        step = self._num_steps_done + 1
        batches = pack_examples(examples, self._packing)
        num_scored = sum(batch.num_scored for batch in batches)
        if num_scored == 0:
            raise ValueError(f"update {step}: none of the examples has a response token; nothing can be learnt")
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._parallel.device)
        for batch in self._parallel.gradient_passes(self._model, batches):
            loss = self._loss(batch)
            (loss * (1 / num_scored)).backward()
            loss_sum += loss.detach()
        total = loss_sum.item()
        require_finite("loss", total, step)
        learning_rate = self.learning_rate(step)
        grad_norm = apply_gradients(
            self._model,
            self._optimiser,
            learning_rate=learning_rate,
            max_grad_norm=self._config.max_grad_norm,
            step=step,
        )
        self._num_steps_done = step
        return {
            "sft/loss": total / num_scored,
            "sft/grad_norm": grad_norm,
            "sft/learning_rate": learning_rate,
            "sft/tokens": float(sum(len(example.token_ids) for example in examples)),
            "sft/response_tokens": float(num_scored),
        }

    @torch.no_grad()
    def mean_loss(self, examples: Sequence[TokenisedExample]) -> float:
        """Return the loss on examples without training, in nats per response token."""
        batches = pack_examples(examples, self._packing)
        loss_sum = torch.zeros((), dtype=torch.float64, device=self._parallel.device)
        for batch in batches:
            loss_sum += self._loss(batch)
        return loss_sum.item() / sum(batch.num_scored for batch in batches)

    def _loss(self, batch: PackedTokens) -> Tensor:
        on_device = batch.to(self._parallel.device, sequence=None)
        return -score_tokens(self._model, on_device, temperature=1.0).logprobs_N.sum()

    def learning_rate(self, step: int) -> float:
        """Return the learning rate of update `step`, from 1."""
        return learning_rate_at(step, self._config, decay_steps=self._num_steps)

    def save(self, url: str) -> None:
        """Write a checkpoint of weights and optimiser into the folder `url`."""
        self._checkpoints.begin(url, self._model, self._optimiser)
        self._checkpoints.wait()

    def load(self, url: str, *, step: int) -> None:
        """Load the checkpoint in the folder `url`, written after update `step`."""
        load_checkpoint(url, self._model, self._optimiser)
        self._num_steps_done = step

    def export(self, path: str) -> None:
        """Write the model as a Hugging Face folder (`export_policy`)."""
        export_policy(self._model, self._adapters, self._source, path, writes=True)

    def close(self) -> None:
        """Leave the process group."""
        self._parallel.close()
