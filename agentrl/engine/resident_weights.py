"""The weights of a model in this process: replaced in place, put aside while something else needs the memory, taken back."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from agentrl.engine.weight_check import check_weights
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.device_memory import release_cached_memory
from agentrl.weight_sync.lora_factors import merged_tensors, whole_model
from agentrl.weight_sync.receiver import WeightReceiver


class ResidentWeights:
    """What the state dict of a model holds; other buffers, which no checkpoint has, stay where they are."""

    def __init__(self, model: nn.Module, device: str) -> None:
        """Take a model that is on `device`."""
        self._own: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._distinct = [(tensor.shape, tensor) for tensor in {id(one): one for one in self._own.values()}.values()]
        self._device = torch.device(device)
        self._receiver = WeightReceiver(self._device)
        self.are_whole = True
        """False after `drop`, until `load`."""

    def load(self, source: WeightSource) -> None:
        """Copy new weights over the old ones, after checking that all of them are there and fit.

        Raises:
            EngineDeadError: a stream of weights broke off, and what is here is a mixture.
            EngineError: a name is missing or unknown, a shape differs, a checksum is wrong, or the publisher is gone; no weight
                has changed then.
        """
        self.take_memory()
        check_weights(self._own, source)
        self._receiver.prepare(source)
        tensors = self._receiver.tensors(source)
        if source.lora is not None:
            tensors = merged_tensors(tensors, source.lora) if self.are_whole else whole_model(tensors, source.lora)
        for name, tensor in tensors:
            if name in self._own:  # a folder may hold more than the model does
                self._own[name].copy_(tensor)
            del tensor  # it may be a view of a buffer that the sender frees once nobody refers to it
        self.are_whole = True

    def to_host(self) -> None:
        """Keep the weights in the memory of the host alone; on CPU they are there."""
        self._replace(lambda tensor, shape: tensor.cpu())
        release_cached_memory()

    def drop(self) -> None:
        """Forget the weights; the model computes nonsense until `load`."""
        self._replace(lambda tensor, shape: tensor.new_empty(0))
        self._receiver.forget()
        self.are_whole = False
        release_cached_memory()

    def take_memory(self) -> None:
        """Have memory for the weights again, and in it what `to_host` kept; after `drop`, nothing."""
        self._replace(
            lambda tensor, shape: (tensor if tensor.shape == shape else tensor.new_empty(shape)).to(self._device)
        )

    def _replace(self, new: Callable[[Tensor, torch.Size], Tensor]) -> None:
        """Give every weight the memory of `new(its data, its shape)`; tied ones are one tensor, and stay it."""
        with torch.inference_mode(
            False
        ):  # the engine runs in that mode, and memory that begins there is of a kind of its own
            for shape, tensor in self._distinct:
                tensor.data = new(tensor.data, shape)
