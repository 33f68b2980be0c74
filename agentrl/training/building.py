"""From a folder to a sharded model: what is done to it, and in which order."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.training.model import (
    compile_layers,
    decoder_layers,
    load_model,
    outline_model,
    recompute_activations,
)
from agentrl.training.parallel import Parallel
from agentrl.training.sharded_loading import ModelFiles, compute_buffers, materialise
from agentrl.weight_sync.model_folder import ModelFolder

if TYPE_CHECKING:
    from agentrl.config.schema import ActorSection, ModelSection


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model before it is sharded."""

    model: PreTrainedModel
    files: ModelFiles | None
    """Where its weights are to be read from, for it is an outline; None: it has them."""


def open_model(source: "ModelSection") -> OpenedModel:
    """Return the outline of a model, or the loaded model where its files cannot be read in parts.

    Raises:
        ConfigError: it is not there, no causal LM, or has layers that packing would break.
    """
    folder = ModelFolder(source.path)
    if folder:
        outline = outline_model(source)
        files = ModelFiles(outline, folder)
        if files.can_be_read and compute_buffers(outline):
            return OpenedModel(model=outline, files=files)
    return OpenedModel(model=load_model(source), files=None)


def shard_model(
    model: nn.Module,
    files: ModelFiles | None,
    parallel: Parallel,
    actor: "ActorSection",
    *,
    dtype: torch.dtype,
) -> None:
    """Shard a model over the ranks, in place, each of which reads its part of the weights.

    Args:
        model: an opened one, or what has been made of it.
        files: of the opened one.
        parallel: the ranks.
        actor: how models are held and computed.
        dtype: of the computation.

    Raises:
        ConfigError: Liger's kernels are asked for where there is no CUDA device.
    """
    if actor.liger:
        _use_liger(model, parallel)
    if actor.compile:
        compile_layers(model)
    if actor.activation_checkpointing and any(weight.requires_grad for weight in model.parameters()):
        recompute_activations(model)
    parallel.shard(model, decoder_layers(model), dtype=dtype, shard_size=actor.shard_size, offload=actor.cpu_offload)
    if files is not None:
        materialise(model, torch.device("cpu") if actor.cpu_offload else parallel.device)
        files.read_into(model)


def _use_liger(model: nn.Module, parallel: Parallel) -> None:
    """Replace norms, rotary embeddings and gated layers by Liger's kernels, where it has some for the architecture."""
    if parallel.device.type != "cuda":
        raise ConfigError("`actor.liger` is set, but its kernels are for CUDA devices, and there is none; leave it out")
    from transformers.integrations.liger import apply_liger_kernel

    # The scores are computed by `vocabulary`.
    apply_liger_kernel(model, {"cross_entropy": False, "fused_linear_cross_entropy": False})
