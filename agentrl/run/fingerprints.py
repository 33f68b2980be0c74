"""Inputs of a run besides its config: the files and models that it reads, the user's code, the tools of MCP servers, and
digests of their content.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from agentrl.cluster.ray.user_modules import imported_user_modules
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.run.preflight.models.folders import trained_or_asked
from agentrl.tools.base import ToolConfig
from agentrl.tools.mcp.keys import MCP_TOOL

_WHOLE_BYTES = 64 << 20
_END_BYTES = 1 << 20
_STRIDE_BYTES = 4 << 20
_SAMPLE_BYTES = 16 << 10

CODE = "module "
"""First word of the keys of the user's modules."""
SERVER_TOOL = "MCP tool"
"""First words of the keys of what MCP servers offer."""
EDITABLE = (CODE, SERVER_TOOL)
"""Inputs whose change `run.accept_code_changes` accepts."""
Content = Path | bytes
"""Content of an input: a file, the folder of a model, or the bytes themselves."""
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
    lists = {"data.train_files": config.data.train_files, "data.validation_files": config.data.validation_files}
    lists |= {f"stages[{number}].train_files": stage.train_files or [] for number, stage in enumerate(config.stages)}
    tools = config.tool_config_path or config.rollout.tool_config_path
    files = named_files(lists, {"tool_config_path": tools, "model.chat_template": config.model.chat_template})
    models = trained_or_asked(config) if trains else {"model.path": config.model.path}
    return files | {key: Path(path) for key, path in models.items() if Path(path).is_dir()}


def named_files(lists: Mapping[str, Sequence[str]], files: Mapping[str, str | None]) -> dict[str, Path]:
    """Return the files of some keys that hold lists and of others that hold one file, by the key that names each."""
    named = {f"{key}[{index}]": Path(file) for key, of_key in lists.items() for index, file in enumerate(of_key)}
    return named | {key: Path(file) for key, file in files.items() if file}


def code_of_user() -> dict[str, Path]:
    """Return the user's modules that `check_plugins` has imported, tools and rewards among them, by `module NAME`."""
    return {f"{CODE}{name}": file for name, file in imported_user_modules().items()}


def tools_of_servers(tools: Sequence[ToolConfig]) -> dict[str, bytes]:
    """Return what the policy is shown of the tools of MCP servers, by `MCP tool NAME`, and their names in order."""
    schemas = [tool.tool_schema["function"] for tool in tools if tool.class_name == MCP_TOOL and tool.tool_schema]
    names = {f"{SERVER_TOOL}s": orjson.dumps([schema["name"] for schema in schemas])} if schemas else {}
    return names | {f"{SERVER_TOOL} {schema['name']}": orjson.dumps(schema) for schema in schemas}


def digest_of(path: Content, *, key: str) -> str:
    """Return a digest of bytes, of the content of a file, or of the model in a folder; place and dates are not part of it.

    Raises:
        ConfigError: it cannot be read; `key` is what names it.
    """
    if isinstance(path, bytes):
        return hashlib.sha256(path).hexdigest()
    try:
        if not path.is_dir():
            return _digest_of_file(path, whole_bytes=path.stat().st_size)
        files = sorted({file for pattern in _MODEL_FILES for file in path.glob(pattern) if file.is_file()})
        digests = "".join(f"{file.name}\0{_digest_of_file(file, whole_bytes=_WHOLE_BYTES)}\0" for file in files)
        return hashlib.sha256(digests.encode()).hexdigest()
    except OSError as error:
        raise ConfigError(
            f"{key}: {error.filename or path} cannot be read: {error.strerror}; fetch it again"
        ) from error


def _digest_of_file(file: Path, *, whole_bytes: int) -> str:
    """Return a digest of a file, without reading a large one for minutes.

    A file of more than `whole_bytes` is represented by its size, both ends (with the header of safetensors: names, types and
    shapes) and a sample of every few MiB. So an update of the weights or another type is noticed; a change between two samples
    is not, such as that of one norm.
    """
    with file.open("rb") as content:
        if (size := file.stat().st_size) <= whole_bytes:
            return hashlib.file_digest(content, "sha256").hexdigest()
        digest = hashlib.sha256(f"{size}\0".encode())
        digest.update(os.pread(content.fileno(), _END_BYTES, 0))
        for position in range(_STRIDE_BYTES, size - _END_BYTES, _STRIDE_BYTES):
            digest.update(os.pread(content.fileno(), _SAMPLE_BYTES, position))
        digest.update(os.pread(content.fileno(), _END_BYTES, size - _END_BYTES))
        return digest.hexdigest()
