"""Reads the tools of a run, in any of three forms, into plain data, in the driver (`builder` builds them).

1. `tools: {code_judge: {...}}` in the run config;
2. `tool_config_path` in the run config, at the root or under `rollout`;
3. that file: `tools:`, a list of `{class_name, config, tool_schema}`, or of `{function}` for a function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from yaml import YAMLError

from agentrl.config.load import one_line
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema.run import CodeJudgeTools, RunConfig
from agentrl.errors import ConfigError
from agentrl.judge.connection import check_address, fill_address, lacks_address
from agentrl.tools.base import ToolConfig
from agentrl.tools.function_tool import FUNCTION_TOOL, FunctionToolConfig
from agentrl.tools.python_tool import PYTHON_TOOL, PythonToolConfig
from agentrl.tools.worker_tool import WORKER_TOOL, WorkerToolConfig

_BUILT_IN: dict[str, type[PlainConfig]] = {
    PYTHON_TOOL: PythonToolConfig,
    FUNCTION_TOOL: FunctionToolConfig,
    WORKER_TOOL: WorkerToolConfig,
}


class _Function(PlainConfig):
    name: str = Field(min_length=1)
    description: str = ""
    parameters: dict[str, Any]
    strict: bool = False


class _Schema(PlainConfig):
    type: str = Field(pattern="^function$")
    function: _Function


class _Entry(PlainConfig):
    class_name: str = Field(min_length=1)
    config: dict[str, Any] = Field(default_factory=dict)
    tool_schema: _Schema | None = None


class _FunctionEntry(PlainConfig):
    function: str = Field(min_length=1)
    tool_schema: _Schema | None = None


def load_tool_configs(config: RunConfig) -> list[ToolConfig]:
    """Return the tools of a run as plain data; empty for a run without tools.

    Raises:
        ConfigError: tools are given twice, a key is unknown or wrong, or an address contradicts `judge`.
    """
    path = _tool_config_path(config)
    if config.tools is not None and path is not None:
        raise ConfigError(f"`tools` and `tool_config_path` ({path}) both name the tools of this run; keep one of them")
    if path is not None:
        key, configs = f"{Path(path).name}: tools", load_tool_file(Path(path))
    else:
        key, configs = "tools", _short_form(config.tools.code_judge if config.tools else None)
    for index, tool in enumerate(configs):
        check_address(tool.config, config.judge, key=f"{key}[{index}].config")
    return configs


def load_tool_file(file: Path) -> list[ToolConfig]:
    """Return the tools that a tool YAML file lists.

    Raises:
        ConfigError: as `load_tool_configs`.
    """
    try:
        tree = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    except FileNotFoundError as error:
        looked_in = "" if file.is_absolute() else f", neither next to the config nor in {Path.cwd()}"
        raise ConfigError(f"tool_config_path: {file}: no such file{looked_in}") from error
    except OSError as error:
        # OmegaConf raises one without `strerror` for a file that holds a single number.
        raise ConfigError(f"tool_config_path: {file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.name}: not UTF-8 text: {error}. Save the file as UTF-8") from error
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{file.name}: nested too deeply to be a list of tools") from error
    entries = tree.get("tools") if isinstance(tree, dict) and len(tree) == 1 else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{file.name}: the file must hold one key, `tools`, a list of tools that is not empty")
    return [_read_entry(entry, source=file.name, prefix=f"tools[{index}]") for index, entry in enumerate(entries)]


def needs_judge(configs: Sequence[ToolConfig]) -> bool:
    """Return whether a tool still lacks the address of its judge."""
    return any(lacks_address(tool.config) for tool in configs)


def fill_judge_address(
    configs: Sequence[ToolConfig], urls: Sequence[str], *, token_env: str | None = None
) -> list[ToolConfig]:
    """Return the configs with the running judges' addresses filled in for `host_addr: null`."""
    return [replace(tool, config=fill_address(tool.config, urls, token_env=token_env)) for tool in configs]


def _tool_config_path(config: RunConfig) -> str | None:
    at_root, under_rollout = config.tool_config_path, config.rollout.tool_config_path
    if at_root is not None and under_rollout is not None and at_root != under_rollout:
        raise ConfigError(
            f"`tool_config_path` ({at_root}) and `rollout.tool_config_path` ({under_rollout}) differ; keep one of them"
        )
    return at_root or under_rollout


def _short_form(judge: CodeJudgeTools | None) -> list[ToolConfig]:
    if judge is None:
        return []
    if judge.enable_jupyter:
        raise ConfigError(
            "`tools.code_judge.enable_jupyter` is true, but this version has no stateful tool yet; set it to false"
        )
    config = {
        "host_addr": judge.host_addr,
        "host_port": judge.host_port,
        "hosts": judge.hosts or None,
        "request_processor_concurrency": judge.concurrency,
        "request_processor_batch_size": judge.batch_size,
        "request_processor_batch_timeout_seconds": judge.batch_timeout_seconds,
    }
    checked = read_plain_config(PythonToolConfig, config, source="`tools.code_judge`")
    return [ToolConfig(class_name=PYTHON_TOOL, config=checked.model_dump())]


def _read_entry(entry: Any, *, source: str, prefix: str) -> ToolConfig:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{source}: `{prefix}` is {entry!r}; it must be a mapping with `class_name` or `function`")
    if not {"class_name", "function"} & entry.keys():
        raise ConfigError(f"{source}: `{prefix}` names no tool: give it `class_name` or `function`")
    if "function" in entry:
        function = read_plain_config(_FunctionEntry, entry, source=source, prefix=f"{prefix}.")
        config, schema = {"function": function.function}, function.tool_schema
        class_name = FUNCTION_TOOL
    else:
        tool = read_plain_config(_Entry, entry, source=source, prefix=f"{prefix}.")
        class_name, config, schema = tool.class_name, tool.config, tool.tool_schema
    if not all(part.isidentifier() for part in class_name.split(".")) or "." not in class_name:
        raise ConfigError(
            f"{source}: `{prefix}.class_name` is `{class_name}`; it must be an import path such as `my_tools.MyTool`"
        )
    if config.get("type", "native") != "native":
        raise ConfigError(f"{source}: `{prefix}.config.type` is {config['type']!r}; this version knows `native` only")
    if class_name in _BUILT_IN:
        model = read_plain_config(_BUILT_IN[class_name], config, source=source, prefix=f"{prefix}.config.")
        config = model.model_dump()
    plain_schema = None if schema is None else schema.model_dump(exclude_unset=True)
    return ToolConfig(class_name=class_name, config=config, tool_schema=plain_schema)
