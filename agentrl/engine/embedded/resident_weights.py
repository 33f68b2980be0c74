"""The weights of a model in this process: replaced in place, or dropped and received again."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.lora_factors import adapted_shapes, whole_model
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.transports.cuda_ipc import release_cached_memory


def check_weights(own: Mapping[str, Tensor], source: WeightSource) -> None:
    """Refuse weights that are not exactly those of the model, or LoRA factors that do not fit them.

    Args:
        own: the model's tensors by checkpoint name (`state_dict(keep_vars=True)`; meta tensors suffice). Tied tensors are the
            same object under each name, and one name suffices in `source`.
        source: the published weights.

    Raises:
        EngineError: a name is missing or unknown, or a shape differs; the message shows the first five.
    """
    shapes = {spec.name: spec.shape for spec in source.tensors}
    if source.lora is not None:
        shapes = adapted_shapes(shapes)
    given = {id(own[name]) for name in shapes if name in own}
    problems = [
        *(f"unknown `{name}`" for name in shapes if name not in own),
        *(f"missing `{name}`" for name, tensor in own.items() if source.lora is None and id(tensor) not in given),
        *(
            f"`{name}` has shape {list(shape)}, not {list(own[name].shape)}"
            for name, shape in shapes.items()
            if name in own and tuple(own[name].shape) != tuple(shape)
        ),
    ]
    if problems:
        shown = "; ".join(problems[:5])
        raise EngineError(f"engine: these are not the model's weights ({len(problems)} problems): {shown}")


class ResidentWeights:
    """Tensors of a model's state dict; buffers outside of it stay where they are."""

    def __init__(self, model: nn.Module, device: str) -> None:
        self._own: dict[str, Tensor] = model.state_dict(keep_vars=True)
        self._distinct = [(t.shape, t) for t in {id(tensor): tensor for tensor in self._own.values()}.values()]
        self._receiver = WeightReceiver(torch.device(device))
        self.are_whole = True
        """False after `drop`, until `load`."""

    def load(self, source: WeightSource) -> None:
        """Copy new weights over the old ones, after checking that they are complete and fit.

        Raises:
            EngineDeadError: a stream of weights broke off and left a mixture.
            EngineError: a name is missing or unknown, a shape differs, a checksum is wrong, or the publisher is gone; no weight
                has changed then.
        """
        self.take_memory()
        check_weights(self._own, source)
        self._receiver.prepare(source)
        tensors = self._receiver.tensors(source)
        if source.lora is not None:
            tensors = whole_model(tensors, source.lora)
        for name, tensor in tensors:
            if name in self._own:  # a folder may hold more than the model
                self._own[name].copy_(tensor)
            del tensor  # it may be a view of a buffer that the sender frees after the last reference
        self.are_whole = True

    def drop(self) -> None:
        """Free the weights; the model is unusable until `load`."""
        self._replace(lambda tensor, shape: tensor.new_empty(0))
        self.are_whole = False
        release_cached_memory()

    def take_memory(self) -> None:
        """Allocate device memory for dropped weights; their values are undefined until `load`."""
        self._replace(lambda tensor, shape: tensor if tensor.shape == shape else tensor.new_empty(shape))

    def _replace(self, new: Callable[[Tensor, torch.Size], Tensor]) -> None:
        """Replace the data of every weight by `new(data, shape)`; tied weights stay one tensor."""
        # Tensors allocated in the engine's inference mode could not be updated outside of it.
        with torch.inference_mode(False):
            for shape, tensor in self._distinct:
                tensor.data = new(tensor.data, shape)
