"""Building of a sharded model from a folder."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.models.weight_files import ModelFolder
from agentrl.training.model.decoder import (
    CLASSIFIER_KEY,
    compile_layers,
    decoder_layers,
    load_classifier,
    load_model,
    outline_model,
    recompute_activations,
)
from agentrl.training.model.sharded_loading import ModelFiles, compute_buffers, materialise
from agentrl.training.parallel import Parallel

if TYPE_CHECKING:
    from agentrl.config.schema.run import ActorSection, ModelSection


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model before it is sharded."""

    model: PreTrainedModel
    files: ModelFiles | None
    """Files to read the weights from, if the model is an outline; None: it has its weights."""


def open_model(source: "ModelSection", *, needs_head: bool = True, key: str = "model.path") -> OpenedModel:
    """Return the outline of a model, or the model of `load_model` if its files cannot be read in parts; raises as that does."""
    return _open(source.path, key, partial(load_model, source, needs_head=needs_head, key=key))


def open_classifier(path: str) -> OpenedModel:
    """Return a sequence classifier as `open_model` returns a causal LM."""
    return _open(path, CLASSIFIER_KEY, partial(load_classifier, path))


def _open(path: str, key: str, load: Callable[[], PreTrainedModel]) -> OpenedModel:
    folder = ModelFolder(path)
    if folder:
        outlined = outline_model(path, key=key)
        files = ModelFiles(outlined, folder)
        if files.can_be_read and compute_buffers(outlined):
            return OpenedModel(model=outlined, files=files)
    return OpenedModel(model=load(), files=None)


def shard_model(
    model: nn.Module,
    files: ModelFiles | None,
    parallel: Parallel,
    actor: "ActorSection",
    *,
    dtype: torch.dtype,
) -> None:
    """Shard an opened model, or one built on it, in place; each rank reads its part of the weights."""
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
    """Replace norms, rotary embeddings and gated layers by Liger's kernels, if it supports the architecture."""
    if parallel.device.type != "cuda":
        raise ConfigError("`actor.liger` is set, but its kernels are for CUDA devices, and there is none; leave it out")
    from transformers.integrations.liger import apply_liger_kernel

    # Liger knows only models of transformers, such as a critic's backbone.
    supported = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    # `chunked_logits` computes the scores.
    apply_liger_kernel(supported, {"cross_entropy": False, "fused_linear_cross_entropy": False})
