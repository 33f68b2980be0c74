"""Loading of weights from a model's files straight into its shards, so that no process holds the whole model.

A model is outlined on the device `meta` and sharded; then each rank allocates its shards and reads its part of every tensor.
The files must hold the tensors of the model, or the experts that transformers stacks. For other conversions and older formats,
every rank loads the whole model first instead.
"""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from agentrl.models.file_names import FileNames
from agentrl.models.weight_files import ModelFolder
from agentrl.training.parallel import local_part


class ModelFiles:
    """Mapping of a model's modules to tensors of a folder; it stays valid when the modules are wrapped later."""

    def __init__(self, model: PreTrainedModel, folder: ModelFolder) -> None:
        """Take the model while its modules still have the names of the files."""
        self._folder = folder
        self._names = {module: name for name, module in model.named_modules()}
        self.file_names = FileNames(model)
        self._in_files = self._found_in_files(model)
        saved = list(self._saved_tensors(model))
        available = {id(tensor) for name, tensor in saved if name in self._in_files}
        self.can_be_read = all(id(tensor) in available for _, tensor in saved)
        """True if every weight of the model is in the folder, as one tensor or as parts to stack."""

    @torch.no_grad()
    def read_into(self, model: nn.Module) -> None:
        """Read this rank's part of the weights; modules that were added later are left alone."""
        done: set[int] = set()
        for name, tensor in self._saved_tensors(model):
            if name in self._in_files and id(tensor) not in done:  # a tied weight has several names
                done.add(id(tensor))
                local, index = local_part(tensor)
                parts = self._in_files[name]
                if isinstance(parts, str):
                    local.copy_(self._folder.part(parts, index))
                else:
                    self._read_stacked(parts, local, index)

    def _read_stacked(self, experts: list[list[str]], local: Tensor, index: tuple[slice, ...]) -> None:
        first, *others = index or (slice(None),)
        for place, parts in enumerate(experts[first]):
            whole = torch.cat([self._folder[part] for part in parts])
            local[place].copy_(whole[tuple(others)] if others else whole)

    def _found_in_files(self, model: PreTrainedModel) -> dict[str, str | list[list[str]]]:
        """Return for each weight its tensor in the files, or the tensors that make up each of its experts."""
        sources: dict[str, str | list[list[str]]] = {}
        for name, tensor in self._saved_tensors(model):
            stacked, shape = self.file_names.of_experts(name, tensor), tuple(tensor.shape)
            if stacked is not None:
                if self._shapes_of(stacked) == {shape}:
                    sources[name] = stacked
                continue
            file_name, *others = self.file_names.parts(name, tensor)
            if not others and file_name in self._folder and self._folder.shape(file_name) == shape:
                sources[name] = file_name
        return sources

    def _shapes_of(self, experts: list[list[str]]) -> set[tuple[int, ...]]:
        """Return the possible shapes of a stack of these; empty if one is missing."""
        if not all(part in self._folder for parts in experts for part in parts):
            return set()
        shapes = [[self._folder.shape(part) for part in parts] for parts in experts]
        return {(len(experts), sum(rows for rows, *_ in each), *each[0][1:]) for each in shapes}

    def _saved_tensors(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield parameters and saved buffers under the names of the files; tied ones under each of their names."""
        for module in model.modules():
            if module not in self._names:
                continue
            prefix = f"{self._names[module]}." if self._names[module] else ""
            transient = module._non_persistent_buffers_set
            buffers = ((leaf, buffer) for leaf, buffer in module._buffers.items() if leaf not in transient)
            for leaf, tensor in chain(module._parameters.items(), buffers):
                if tensor is not None:
                    yield prefix + leaf, tensor


def compute_buffers(model: PreTrainedModel) -> bool:
    """Compute an outlined model's tensors that no file holds, such as rotary frequencies, on the CPU; False: impossible."""
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
    return all(each is None or (each.is_floating_point() and not bool(each.isnan().any())) for each in computed)


def materialise(model: nn.Module, device: torch.device) -> None:
    """Allocate the shards of an outlined model on `device`, uninitialised."""
    # `to_empty` would lose the buffers; FSDP tracks changes through `_apply`.
    model._apply(lambda tensor: torch.empty_like(tensor, device=device) if tensor.is_meta else tensor)


def _owned(module: nn.Module, owner: PreTrainedModel) -> Iterator[tuple[PreTrainedModel, nn.Module]]:
    """Yield every module with the transformers model that can initialise it."""
    owner = module if isinstance(module, PreTrainedModel) else owner
    yield owner, module
    for child in module.children():
        yield from _owned(child, owner)
