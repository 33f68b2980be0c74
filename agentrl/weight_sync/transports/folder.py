"""Weights in the safetensors files of a Hugging Face folder: no publisher runs, and each engine reads the files itself.

The folder must be readable where the engines run, and stay as it is until the next version.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from agentrl.errors import ConfigError, EngineError
from agentrl.models.weight_files import ModelFolder, tensor_shapes
from agentrl.weight_sync.base import TensorSpec, Transport, WeightSource

if TYPE_CHECKING:
    from torch import Tensor


def folder_source(path: Path, *, version: int) -> WeightSource:
    """Return the source of a folder's weights; only the headers of its files are read, without torch.

    Raises:
        ConfigError: the folder has no safetensors files, or one cannot be read.
    """
    shapes = tensor_shapes(str(path), key="path")
    if not shapes:
        raise ConfigError(
            f"`path`: {path} has no `model.safetensors` here; save the policy there as a Hugging Face folder"
        )
    return WeightSource(
        transport=Transport.FOLDER,
        address=str(path),
        size_bytes=0,
        tensors=tuple(TensorSpec(name=name, shape=shape, dtype="", offset_bytes=0) for name, shape in shapes.items()),
        publisher=fingerprint(path),
        version=version,
    )


def folder_weights(source: WeightSource) -> Mapping[str, "Tensor"]:
    """Return the tensors by name, read on access.

    Raises:
        EngineError: the files cannot be read, or have changed since `folder_source`.
    """
    if fingerprint(Path(source.address)) != source.publisher:
        raise EngineError(
            f"weights in {source.address}: the files have changed since; keep a folder until the next version"
        )
    try:
        return ModelFolder(source.address, key="path")
    except ConfigError as error:
        raise EngineError(str(error)) from error


def fingerprint(path: Path) -> str:
    """Return names, sizes and times of the folder's safetensors files, as text."""
    files = {file.name: file.stat() for file in sorted(path.glob("*.safetensors"))}
    return " ".join(f"{name}:{status.st_size}:{status.st_mtime_ns}" for name, status in files.items())
