"""Export of a trained model, maybe with adapters: by its ranks, or from a checkpoint by one process on the CPU."""

from typing import TYPE_CHECKING

import torch
from torch import nn

from agentrl.training.checkpoint import load_weights
from agentrl.training.model.decoder import export_model
from agentrl.training.model.sharded_loading import materialise
from agentrl.training.model.sharded_model import OpenedModel, open_model
from agentrl.training.parallel import full_tensors

if TYPE_CHECKING:
    from agentrl.config.schema.algorithm import LoraSection
    from agentrl.config.schema.run import ModelSection, RunConfig
    from agentrl.training.model.lora import Adapters


def insert_adapters(opened: OpenedModel, lora: "LoraSection", source: "ModelSection", *, key: str) -> "Adapters | None":
    """Return LoRA's factors beside the layers of a model that is not sharded yet; None if `lora`, the section `key`, is off."""
    if lora.rank == 0:
        return None
    from agentrl.training.model.lora import Adapters  # PEFT takes seconds

    return Adapters(opened, lora, source, key=key)


def export_policy(
    model: nn.Module, adapters: "Adapters | None", source: "ModelSection", path: str, *, writes: bool
) -> None:
    """Write a model in `source.dtype` as a Hugging Face folder with its tokenizer (`export_model`).

    LoRA's factors are merged into the weights, and also written separately into the subfolder `adapter`. All ranks gather, and
    only one `writes`.
    """
    dtype = getattr(torch, source.dtype)
    whole = full_tensors(model, dtype) if adapters is None else adapters.merged_tensors(dtype)
    weights = {name: tensor for name, tensor in whole if writes}
    if writes:
        export_model(model, weights, source, path)
    if adapters is not None:
        adapters.export(f"{path}/adapter", writes=writes)


def export_checkpoint(url: str, config: "RunConfig", path: str) -> None:
    """Write the policy of a checkpoint exactly as `Actor.export` would have at that step.

    Needs memory for the weights in float32, and once more in `model.dtype` if that is another type.

    `url` is the folder of the actor's part, written by any number of ranks; of `config` only `model` and `actor.lora` are read.

    Raises:
        ConfigError: the model or its adapters cannot be built.
        CheckpointError: the checkpoint is missing, incomplete, or that of another model.
    """
    opened = open_model(config.model)
    model = opened.model
    adapters = insert_adapters(opened, config.actor.lora, config.model, key="actor.lora")
    if opened.files is not None:
        # The files are not read. Weights that the checkpoint lacks, such as frozen ones, take no memory until written.
        materialise(model, torch.device("cpu"))
        model.tie_weights()  # `materialise` unties them
    load_weights(url, model, trained_only=True)
    export_policy(model, adapters, config.model, path, writes=True)
