"""The weights in a Hugging Face folder; any part of any tensor can be read without the rest."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentrl.errors import ConfigError

WHOLE = "model.safetensors"


INDEX = "model.safetensors.index.json"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files: one, or those that an index names; none if the weights are in another format.

    Raises:
        OSError, ValueError: the index cannot be read.
    """
    if (folder / WHOLE).is_file():
        return [folder / WHOLE]
    if not (folder / INDEX).is_file():
        return []
    index = json.loads((folder / INDEX).read_text())
    if not isinstance(index, dict) or not isinstance(index.get("weight_map"), dict):
        raise ValueError(f"{folder / INDEX} has no `weight_map`")
    return [folder / name for name in sorted(set(index["weight_map"].values()))]


def tensor_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of all tensors of a folder by name, reading no values.

    Raises:
        SafetensorError, OSError, ValueError: a file is missing or broken.
    """
    shapes: dict[str, list[int]] = {}
    for file in weight_files(folder):
        with safe_open(file, framework="np") as tensors:
            shapes |= {name: tensors.get_slice(name).get_shape() for name in tensors.keys()}  # noqa: SIM118 - no mapping
    return shapes


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
