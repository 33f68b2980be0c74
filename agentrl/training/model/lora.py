"""LoRA (arXiv:2106.09685) by PEFT: two thin factors beside each linear weight are trained, and the weights are frozen.

The factors are submodules of transformers' model (`layer.q_proj.lora_A`), so sharding, packing and scoring treat them like
any weight. Without them the same model is the reference.
"""

import contextlib
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from peft import LoraConfig, TaskType, inject_adapter_in_model
from peft.tuners.lora import Linear as LoraLinear
from safetensors.torch import save_file
from torch import Tensor, nn

from agentrl.errors import ConfigError
from agentrl.training.model.decoder import apply_umask, decoder_layers
from agentrl.training.model.sharded_model import OpenedModel
from agentrl.training.parallel import gathered_to_cpu, local_part
from agentrl.weight_sync.base import LoraBase
from agentrl.weight_sync.lora_factors import FACTOR_A, FACTOR_B, whole_model

if TYPE_CHECKING:
    from agentrl.config.schema.algorithm import LoraSection
    from agentrl.config.schema.run import ModelSection

_ADAPTER = "default"
"""PEFT's name for the only adapter."""
_BASE = ".base_layer."
"""Part that PEFT inserts into the names of adapted weights."""


class Adapters:
    """The factors beside the linear layers of a model; every rank must make the same calls."""

    def __init__(self, opened: OpenedModel, section: "LoraSection", source: "ModelSection", *, key: str) -> None:
        """Insert them into a model that is not sharded yet, and freeze the rest; `key` names the config section.

        Raises:
            ConfigError: `target_modules` names what is no linear layer of a decoder block, or engines cannot read the model's
                files.
        """
        if opened.files is None or opened.files.file_names.are_converted:
            raise ConfigError(
                f"`{key}` is set, but `model.path` ({source.path}) is no folder with safetensors files under the "
                f"model's own names, from which engines read the base weights; save it as one, or leave `{key}` out"
            )
        model = opened.model
        self._model = model
        self._config = LoraConfig(
            task_type=TaskType.CAUSAL_LM,
            base_model_name_or_path=source.path,
            r=section.rank,
            lora_alpha=section.alpha,
            target_modules=list(section.target_modules) or "all-linear",
        )
        is_outline = any(weight.is_meta for weight in model.parameters())
        inject_adapter_in_model(self._config, model, adapter_name=_ADAPTER, low_cpu_mem_usage=is_outline)
        inside = {module for layer in decoder_layers(model) for module in layer.modules()}
        self._layers: dict[str, LoraLinear] = {}
        for name, module in model.named_modules():
            if isinstance(module, LoraLinear) and module in inside:
                self._layers[name] = module
            elif hasattr(module, "lora_A"):
                raise ConfigError(
                    f"`{key}.target_modules` is {list(section.target_modules)}: `{name}` is no linear layer of a decoder "
                    "block, and nothing else can be adapted; leave it out"
                )
        self.base = LoraBase(folder=source.path, scale=section.alpha / section.rank)

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Initialise as PEFT does, with products of 0; the same for any number of ranks."""
        generator = torch.Generator().manual_seed(seed)
        for layer in self._layers.values():
            a, b = _factors(layer)
            whole = torch.empty(a.shape, dtype=a.dtype)
            nn.init.kaiming_uniform_(whole, a=math.sqrt(5), generator=generator)
            local, index = local_part(a)
            local.copy_(whole[index])
            local_part(b)[0].zero_()

    @contextlib.contextmanager
    def disabled(self) -> Iterator[None]:
        """Disable them inside."""
        # `enable_adapters` would also turn off their gradients, which FSDP reads only at the first pass.
        for layer in self._layers.values():
            layer._disable_adapters = True
        try:
            yield
        finally:
            for layer in self._layers.values():
                layer._disable_adapters = False

    def factors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield both factors of each adapted weight, as they are sharded: `X.lora_A` and `X.lora_B` of `X.weight`."""
        for name, layer in self._layers.items():
            for end, factor in zip((FACTOR_A, FACTOR_B), _factors(layer), strict=True):
                yield name + end, factor

    def merged_tensors(self, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
        """Yield `full_tensors` of the model with the factors merged.

        As in engines, they are merged into the weights of the files, which may be more precise than those in memory.
        """
        gathered = [(name, gathered_to_cpu(factor, torch.float32)) for name, factor in self.factors()]
        state = self._model.state_dict(keep_vars=True)
        weights = {name.replace(_BASE, "."): tensor for name, tensor in state.items()}
        for name, whole in whole_model(gathered, self.base):
            weight = weights.get(name)
            if weight is not None:
                weights = {other: each for other, each in weights.items() if each is not weight}  # tied ones come once
                yield name, whole.to(dtype) if whole.is_floating_point() else whole

    def export(self, path: str, *, writes: bool) -> None:
        """Write them as a folder that PEFT loads; all ranks gather, and only those with `writes` write."""
        gathered = {name: gathered_to_cpu(factor, torch.float32) for name, factor in self.factors()}
        if writes:
            tensors = {f"base_model.model.{name}.weight": whole.contiguous() for name, whole in gathered.items()}
            folder = Path(path)
            folder.mkdir(parents=True, exist_ok=True)
            save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
            apply_umask(folder)
            self._config.save_pretrained(path)


def _factors(layer: LoraLinear) -> tuple[Tensor, Tensor]:
    return layer.lora_A[_ADAPTER].get_parameter("weight"), layer.lora_B[_ADAPTER].get_parameter("weight")
