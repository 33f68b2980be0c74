"""LoRA's factors on their way to engines, which hold whole weights: only the factors travel, and are merged where they arrive.

The weights that they are added to are read from the files of the model each time, so that no engine keeps them twice and no
rounding adds up from version to version.

Letters in shapes: R rank, I inputs and O outputs of a linear layer.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from agentrl.weight_sync.base import LoraBase
from agentrl.weight_sync.model_folder import ModelFolder

FACTOR_A = ".lora_A"
"""`X.lora_A` is the `[R, I]` factor of `X.weight`."""
FACTOR_B = ".lora_B"
"""`X.lora_B` is the `[O, R]` factor of it."""


def merged_weight(weight_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """Return the `[O, I]` weight that computes what a layer and its factors compute together, float32."""
    return weight_OI.float().addmm(b_OR.float(), a_RI.float(), alpha=scale)


def adapted_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights that factors of these names and shapes change."""
    modules = [name.removesuffix(FACTOR_A) for name in shapes if name.endswith(FACTOR_A)]
    return {f"{module}.weight": (shapes[module + FACTOR_B][0], shapes[module + FACTOR_A][1]) for module in modules}


def merged_tensors(factors: Iterable[tuple[str, Tensor]], base: LoraBase) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights that are changed by factors, one at a time, on the CPU."""
    folder, by_name = ModelFolder(base.folder), _kept(factors)
    for name in adapted_shapes({name: tuple(factor.shape) for name, factor in by_name.items()}):
        yield name, _merged(name, folder, by_name, base)


def whole_model(factors: Iterable[tuple[str, Tensor]], base: LoraBase) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights of the model, on the CPU, for an engine that can only take all of them.

    Those that are changed are float32, whatever the files are: rounded to bfloat16 here, small changes would be lost on engines
    that compute in float32.
    """
    folder, by_name = ModelFolder(base.folder), _kept(factors)
    changed = adapted_shapes({name: tuple(factor.shape) for name, factor in by_name.items()})
    for name, weight in folder.items():
        yield name, _merged(name, folder, by_name, base) if name in changed else weight


def _kept(factors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Copy what may be views of a buffer that is written again, to where the files are read."""
    return {name: factor.to("cpu", copy=True) for name, factor in factors}


def _merged(name: str, folder: ModelFolder, factors: Mapping[str, Tensor], base: LoraBase) -> Tensor:
    module = name.removesuffix(".weight")
    return merged_weight(folder[name], factors[module + FACTOR_A], factors[module + FACTOR_B], base.scale)
