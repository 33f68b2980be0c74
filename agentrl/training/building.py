"""From a folder to a sharded model: what is done to it, and in which order."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from agentrl.errors import ConfigError
from agentrl.training.model import (
    compile_layers,
    decoder_layers,
    load_classifier,
    load_model,
    outline_classifier,
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


def open_model(source: "ModelSection", *, needs_head: bool = True, key: str = "model.path") -> OpenedModel:
    """Return the outline of a model, or the loaded model where its files cannot be read in parts.

    Args:
        source: where it is.
        needs_head: whether the files must hold more than the backbone.
        key: of the config that names it.

    Raises:
        ConfigError: it is not there, no causal LM, lacks weights, or has layers that packing would break.
    """
    load = partial(load_model, source, needs_head=needs_head, key=key)
    return _open(source.path, outline=partial(outline_model, source, key=key), load=load)


def open_classifier(path: str) -> OpenedModel:
    """Return the same of a sequence classifier.

    Raises:
        ConfigError: it is not there, no sequence classifier, or has layers that packing would break.
    """
    return _open(path, outline=partial(outline_classifier, path), load=partial(load_classifier, path))


def _open(path: str, *, outline: Callable[[], PreTrainedModel], load: Callable[[], PreTrainedModel]) -> OpenedModel:
    folder = ModelFolder(path)
    if folder:
        outlined = outline()
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

    # It knows models of transformers alone: of a critic, the backbone.
    known = next(module for module in model.modules() if isinstance(module, PreTrainedModel))
    # The scores are computed by `vocabulary`.
    apply_liger_kernel(known, {"cross_entropy": False, "fused_linear_cross_entropy": False})
