"""The weights of a model under the names of its files: transformers stacks the experts of a mixture, and vLLM reads each."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion


class FileNames:
    """Names and parts of one model's weights in the files that transformers would write."""

    def __init__(self, path: str) -> None:
        """Take the architecture from the `config.json` of a folder, or of a model on a hub."""
        with torch.device("meta"):
            self._model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
        self.are_converted = bool(get_model_conversion_mapping(self._model, add_legacy=False))

    def of(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the files, from those of the model, one after another."""
        for name, tensor in weights:
            if self.are_converted:
                yield from revert_weight_conversion(self._model, {name: tensor}).items()
            else:
                yield name, tensor
