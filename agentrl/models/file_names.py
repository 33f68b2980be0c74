"""Weights of a model under the names of its files: transformers stacks the experts of a mixture, files and vLLM do not."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Self

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import revert_weight_conversion


class FileNames:
    """Names and parts of one model's weights in the files that transformers would write."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Take the model; only its architecture is used."""
        self._model = model
        self.are_converted = bool(get_model_conversion_mapping(model, add_legacy=False))
        """True if names or forms of weights in transformers differ from those in the files."""

    @classmethod
    def of_folder(cls, path: str) -> Self:
        """Take the architecture from the `config.json` of a folder, or of a model on the hub."""
        with torch.device("meta"):
            return cls(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path, trust_remote_code=False)))

    def of(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of the files, converted from those of the model."""
        for name, tensor in weights:
            yield from self.parts(name, tensor).items()

    def parts(self, name: str, tensor: Tensor) -> dict[str, Tensor]:
        """Return the tensors that a weight of the model is written as."""
        return revert_weight_conversion(self._model, {name: tensor}) if self.are_converted else {name: tensor}

    def of_experts(self, name: str, tensor: Tensor) -> list[list[str]] | None:
        """Return the names of the tensors that make up each expert of a stack `[E, R, C]`, concatenated along R.

        None if the weight is no stack, or is stored in another form.
        """
        if not self.are_converted or tensor.ndim != 3:
            return None
        # A small stack whose values are its row numbers: converted by transformers, it shows where each row goes.
        probe = torch.arange(4 * tensor.shape[0]).view(-1, 4, 1).repeat(1, 1, 2)
        experts: defaultdict[int, dict[int, str]] = defaultdict(dict)
        for part, rows in self.parts(name, probe).items():
            first = int(rows.flatten()[0])
            expected = torch.arange(first, first + len(rows)).unsqueeze(1).repeat(1, 2)
            if rows.shape != expected.shape or not torch.equal(rows, expected):
                return None
            experts[first // 4][first % 4] = part
        return [[parts[row] for row in sorted(parts)] for _, parts in sorted(experts.items())]
