"""Comparison of published weights with a model before they are loaded."""

from collections.abc import Mapping

from torch import Tensor

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.lora_factors import adapted_shapes


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
