"""Weight files of a Hugging Face folder, and their headers; without torch.

Other safetensors files, such as Mistral's `consolidated.safetensors`, are ignored.
"""

import json
from pathlib import Path

from safetensors import safe_open

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
