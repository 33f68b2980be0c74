"""Weights from the files of a model straight into its shards: no process ever holds the whole model.

A model is outlined on the device `meta`, which has shapes and no memory; it is sharded; each rank takes memory for its shards
and reads its part of every tensor. This needs files whose tensors are those of the model. Where transformers converts them (it
stacks the experts of some mixtures, say) or they are of an older format, every rank loads the whole model first instead.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping

from agentrl.training.parallel import local_part
from agentrl.weight_sync.model_folder import ModelFolder


class ModelFiles:
    """Which tensor of a folder belongs into which module, whatever the modules are put into afterwards."""

    def __init__(self, model: PreTrainedModel, folder: ModelFolder) -> None:
        """Take the model while its modules have the names of the files."""
        self._folder = folder
        self._names = {module: name for name, module in model.named_modules()}
        self._can_be_read = self._has_all(model) and not get_model_conversion_mapping(model, add_legacy=False)

    @property
    def can_be_read(self) -> bool:
        """Whether every weight of the model is in the folder, by name and shape, and would be taken as it is."""
        return self._can_be_read

    @torch.no_grad()
    def read_into(self, model: nn.Module) -> None:
        """Fill what this rank holds of the weights; modules that have been added are left alone."""
        done: set[int] = set()
        for name, tensor in self._saved_tensors(model):
            if name in self._folder and id(tensor) not in done:  # a tied weight has several names
                done.add(id(tensor))
                local, index = local_part(tensor)
                local.copy_(self._folder.part(name, index))

    def _has_all(self, model: PreTrainedModel) -> bool:
        saved = list(self._saved_tensors(model))
        found = {
            id(tensor)
            for name, tensor in saved
            if name in self._folder and self._folder.shape(name) == tuple(tensor.shape)
        }
        return all(id(tensor) in found for _, tensor in saved)

    def _saved_tensors(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and the buffers that are saved by the names of the files; tied ones under each of their names."""
        for module in model.modules():
            if module not in self._names:
                continue
            prefix = f"{self._names[module]}." if self._names[module] else ""
            buffers = (
                (leaf, one) for leaf, one in module._buffers.items() if leaf not in module._non_persistent_buffers_set
            )
            for leaf, tensor in chain(module._parameters.items(), buffers):
                if tensor is not None:
                    yield prefix + leaf, tensor


def compute_buffers(model: PreTrainedModel) -> bool:
    """Give an outlined model the tensors that no file holds, such as the frequencies of rotary embeddings, on the CPU.

    Returns:
        Whether transformers could compute all of them.
    """
    for parameter in model.parameters():
        parameter._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers then leaves it alone
    computed = []
    for owner, module in _owned(model, model):
        for leaf, buffer in module._buffers.items():
            if buffer is not None:
                filler = torch.nan if buffer.is_floating_point() else 0
                module._buffers[leaf] = torch.full_like(buffer, filler, device="cpu")
        if module._non_persistent_buffers_set:
            owner._init_weights(module)
            computed += [module._buffers[leaf] for leaf in module._non_persistent_buffers_set]
    return all(one is None or (one.is_floating_point() and not bool(one.isnan().any())) for one in computed)


def materialise(model: nn.Module, device: torch.device) -> None:
    """Take memory on `device` for the shards of an outlined model; what is in them is anything, until it is read."""
    # Not `to_empty`, which would forget the buffers; and FSDP follows what goes through `_apply`.
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def _owned(module: nn.Module, owner: PreTrainedModel) -> Iterator[tuple[PreTrainedModel, nn.Module]]:
    """Yield every module with the model of transformers that it belongs to, which knows how it begins."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    yield owner, module
    for child in module.children():
        yield from _owned(child, owner)
