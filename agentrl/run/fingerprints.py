"""Inputs of a run besides its config: the files and models that it reads, the user's code, and digests of their content."""

import hashlib
import os
from pathlib import Path
from typing import BinaryIO

from agentrl.cluster.ray.user_modules import imported_user_modules
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.preflight.models.folders import trained_or_asked

_WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20
_STRIDE_BYTES = 4 << 20
_SAMPLE_BYTES = 16 << 10

CODE = "module "
"""First word of the keys of the user's modules."""
_MODEL_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*",
    "*.safetensors",
    "pytorch_model*.bin",
    "model*.bin",
    "*.index.json",
)
"""Files that define a model; others, such as a README or a trainer's leftovers, may change."""


def inputs_of(config: RunConfig, *, trains: bool) -> dict[str, Path]:
    """Return the files and model folders that a run reads, by the key that names each.

    A model on a hub is none of them. An evaluation reads the policy alone of the models.
    """
    files = {f"data.train_files[{index}]": Path(file) for index, file in enumerate(config.data.train_files)}
    for number, stage in enumerate(config.stages):
        files |= {f"stages[{number}].train_files[{i}]": Path(file) for i, file in enumerate(stage.train_files or [])}
    files |= {f"data.validation_files[{index}]": Path(file) for index, file in enumerate(config.data.validation_files)}
    tool_file = config.tool_config_path or config.rollout.tool_config_path
    if tool_file:
        files["tool_config_path"] = Path(tool_file)
    if config.model.chat_template is not None:
        files["model.chat_template"] = Path(config.model.chat_template)
    models = trained_or_asked(config) if trains else {"model.path": config.model.path}
    return files | {key: Path(path) for key, path in models.items() if Path(path).is_dir()}


def code_of_user() -> dict[str, Path]:
    """Return the user's modules that `check_plugins` has imported, tools and rewards among them, by `module NAME`."""
    return {f"{CODE}{name}": file for name, file in imported_user_modules().items()}


def digest_of(path: Path, *, key: str) -> str:
    """Return a digest of the content of a file, or of the model in a folder; where it is and its dates do not count.

    Raises:
        ConfigError: it cannot be read; `key` is what names it.
    """
    try:
        return _digest_of_model(path) if path.is_dir() else _digest_of_file(path)
    except OSError as error:
        raise ConfigError(
            f"{key}: {error.filename or path} cannot be read: {error.strerror}; fetch it again"
        ) from error


def _digest_of_model(folder: Path) -> str:
    digest = hashlib.sha256()
    for file in sorted({file for pattern in _MODEL_FILES for file in folder.glob(pattern) if file.is_file()}):
        digest.update(f"{file.name}\0{_digest_of_large_file(file)}\0".encode())
    return digest.hexdigest()


def _digest_of_file(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _digest_of_large_file(file: Path) -> str:
    """Return a digest of a file of weights that does not take minutes to read.

    A small one is read whole. Of a larger one its size, both ends (with the header of safetensors: names, types and shapes)
    and a sample of every few MiB count. An update, which changes weights all over the file, or another type is seen; a change
    that lies between two samples is not, such as that of one norm or of a few rows of an embedding.
    """
    size = file.stat().st_size
    if size <= _WHOLE_BYTES:
        return _digest_of_file(file)
    with file.open("rb") as content:
        digest = hashlib.sha256(f"{size}\0".encode())
        digest.update(content.read(_END_BYTES))
        for position in range(_STRIDE_BYTES, size - _END_BYTES, _STRIDE_BYTES):
            digest.update(_read_at(content, position, _SAMPLE_BYTES))
        digest.update(_read_at(content, size - _END_BYTES, _END_BYTES))
    return digest.hexdigest()


def _read_at(content: BinaryIO, position: int, count: int) -> bytes:
    return os.pread(content.fileno(), count, position)
