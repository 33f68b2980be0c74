"""Safetensors files of a Hugging Face folder; any part of any tensor can be read without the rest.

Other safetensors files, such as Mistral's `consolidated.safetensors`, are ignored.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from safetensors import SafetensorError, safe_open

from agentrl.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

_WHOLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"


class ModelFolder(Mapping[str, "Tensor"]):
    """Tensors by name, read on access; empty if the folder has no safetensors files."""

    def __init__(self, path: str, *, key: str = "model.path", framework: Literal["pt", "np"] = "pt") -> None:
        """Open the safetensors files of a folder, or of a name on the hub, which the config names by `key`.

        The framework `np` reads only shapes, without torch. Raises ConfigError if a file is missing or broken.
        """
        self._readers: dict[str, Any] = {}
        try:
            for file in _weight_files(_folder_of(path)):
                reader: Any = safe_open(file, framework=framework)
                self._readers |= dict.fromkeys(reader.keys(), reader)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise ConfigError(f"`{key}`: {path}: its weights cannot be read: {error!r}; fetch them again") from error

    def __getitem__(self, name: str) -> "Tensor":
        return self._readers[name].get_tensor(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    def __contains__(self, name: object) -> bool:
        return name in self._readers  # `Mapping` would read the tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it."""
        return tuple(self._readers[name].get_slice(name).get_shape())

    def part(self, name: str, index: tuple[slice, ...]) -> "Tensor":
        """Return a part of a tensor, one slice for each dimension, reading nothing else."""
        return self._readers[name].get_slice(name)[index] if index else self[name]


def tensor_shapes(path: str, *, key: str = "model.path") -> dict[str, tuple[int, ...]]:
    """Return the shapes of all tensors in a local folder by name, without torch; empty for a model on a hub."""
    if not Path(path).is_dir():
        return {}
    tensors = ModelFolder(path, key=key, framework="np")
    return {name: tensors.shape(name) for name in tensors}


def _folder_of(path: str) -> Path:
    if Path(path).is_dir():
        return Path(path)
    from huggingface_hub import snapshot_download  # takes half a second, and most runs name a folder

    return Path(snapshot_download(path, allow_patterns=[_WHOLE, _INDEX, "model-*.safetensors"]))


def _weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files: one, or those that an index names; none if the weights are in another format."""
    if (folder / _WHOLE).is_file():
        return [folder / _WHOLE]
    if not (folder / _INDEX).is_file():
        return []
    index = json.loads((folder / _INDEX).read_text())
    return [folder / name for name in sorted(set(index["weight_map"].values()))]
