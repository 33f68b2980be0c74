"""The weights in a Hugging Face folder; any part of any tensor can be read without the rest."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.errors import ConfigError
from agentrl.models.weight_files import INDEX, WHOLE, weight_files


class ModelFolder(Mapping[str, Tensor]):
    """Tensors by name, read on access; empty if the folder has no safetensors files."""

    def __init__(self, path: str) -> None:
        """Open the safetensors files: one, or those that an index names.

        Args:
            path: a folder, or a name on the hub.

        Raises:
            ConfigError: the folder does not exist, or one of its files is missing or broken.
        """
        self._path = path
        self._readers: dict[str, Any] = {}
        try:
            for file in weight_files(_folder_of(path)):
                reader: Any = safe_open(file, framework="pt", device="cpu")
                self._readers |= dict.fromkeys(reader.keys(), reader)
        except (OSError, ValueError, SafetensorError) as error:
            raise ConfigError(f"`model.path`: the weights in {path} cannot be read: {error}") from error

    def __getitem__(self, name: str) -> Tensor:
        """Return a whole tensor."""
        return self._readers[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of all tensors."""
        return iter(self._readers)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        """Return True if the folder has a tensor of this name, without reading it."""
        return name in self._readers

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        return tuple(self._readers[name].get_slice(name).get_shape())

    def part(self, name: str, index: tuple[slice, ...]) -> Tensor:
        """Return a part of a tensor, one slice for each dimension, reading nothing else."""
        return self._readers[name].get_slice(name)[index] if index else self[name]


def _folder_of(path: str) -> Path:
    if Path(path).is_dir():
        return Path(path)
    return Path(snapshot_download(path, allow_patterns=[WHOLE, INDEX, "model-*.safetensors"]))
