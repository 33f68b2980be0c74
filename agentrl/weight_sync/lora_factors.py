"""Transfer of LoRA's factors: only the factors travel, and the engine merges them into its weights.

The base weights are read from the model's files each time, so that no engine keeps them twice and rounding does not
accumulate from version to version.

Letters in shapes: R rank, I inputs and O outputs of a linear layer.
"""

from collections.abc import Iterable, Iterator, Mapping

from torch import Tensor

from agentrl.errors import EngineError
from agentrl.models.weight_files import ModelFolder
from agentrl.weight_sync.base import LoraBase

FACTOR_A = ".lora_A"
"""`X.lora_A` is the `[R, I]` factor of `X.weight`."""
FACTOR_B = ".lora_B"
"""`X.lora_B` is the `[O, R]` factor of it."""


def merged_weight(weight_OI: Tensor, a_RI: Tensor, b_OR: Tensor, scale: float) -> Tensor:
    """Return the `[O, I]` weight of a layer with its factors merged, float32."""
    return weight_OI.float().addmm(b_OR.float(), a_RI.float(), alpha=scale)


def adapted_shapes(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the weights that these factors change."""
    modules = [name.removesuffix(FACTOR_A) for name in shapes if name.endswith(FACTOR_A)]
    return {f"{module}.weight": (shapes[module + FACTOR_B][0], shapes[module + FACTOR_A][1]) for module in modules}


def whole_model(factors: Iterable[tuple[str, Tensor]], base: LoraBase) -> Iterator[tuple[str, Tensor]]:
    """Yield all weights of the model, merged, one at a time, on the CPU; `EngineError` if factors belong to none.

    Changed weights are float32 whatever the files are: rounding to bfloat16 here would lose small changes on engines that
    compute in float32.
    """
    copies = {name: factor.to("cpu", copy=True) for name, factor in factors}  # they may be views of a reused buffer
    folder = ModelFolder(base.folder)
    adapted = adapted_shapes({name: tuple(factor.shape) for name, factor in copies.items()})
    if missing := adapted.keys() - folder.keys():
        raise EngineError(f"engine: {base.folder} lacks weights that LoRA changes: {', '.join(sorted(missing))}")
    for name, weight in folder.items():
        if name in adapted:
            module = name.removesuffix(".weight")
            weight = merged_weight(weight, copies[module + FACTOR_A], copies[module + FACTOR_B], base.scale)
        yield name, weight
