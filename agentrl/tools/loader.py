"""Reads the tools of a run, in any of three forms, into plain data, in the driver (`builder` builds them).

1. `tools: {code_judge: {...}}` in the run config;
2. `tool_config_path` in the run config, at the root or under `rollout`;
3. that file: `tools:`, a list of `{class_name, config, tool_schema}`, of `{function}` for a function, or of `{type: mcp}` for
   an MCP server, which `with_server_tools` asks for its tools.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import Field
from yaml import YAMLError

from agentrl.config.load import one_line
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.config.schema.judge import CodeJudgeTools
from agentrl.config.schema.run import RunConfig
from agentrl.errors import ConfigError
from agentrl.judge.connection import JudgeKeys
from agentrl.tools.base import ToolConfig
from agentrl.tools.function_tool import FUNCTION_TOOL, FunctionToolConfig
from agentrl.tools.jupyter_tool import JUPYTER_TOOL, JupyterToolConfig
from agentrl.tools.mcp.keys import MCP_TOOL, McpServerConfig, McpToolConfig
from agentrl.tools.python_tool import PYTHON_TOOL, PythonToolConfig
from agentrl.tools.verl_adapter import SchemaView
from agentrl.tools.worker_tool import WORKER_TOOL, WorkerToolConfig

JUDGE_TOOLS: dict[str, type[JudgeKeys]] = {PYTHON_TOOL: PythonToolConfig, JUPYTER_TOOL: JupyterToolConfig}
"""Tools that ask a judge, with the keys that name it."""
_BUILT_IN: dict[str, type[PlainConfig]] = {
    **JUDGE_TOOLS,
    FUNCTION_TOOL: FunctionToolConfig,
    WORKER_TOOL: WorkerToolConfig,
}


class _Entry(PlainConfig):
    """An entry of the tool YAML; `function: a.b` is a `FunctionTool` with this key in its config."""

    class_name: str = FUNCTION_TOOL
    function: str | None = None
    config: dict[str, Any] = Field(default_factory=dict)
    tool_schema: SchemaView | None = None


def load_tool_configs(config: RunConfig) -> list[ToolConfig]:
    """Return the tools of a run as plain data; empty for a run without tools.

    Raises:
        ConfigError: tools are given twice, a key is unknown or wrong, or an address contradicts `judge`.
    """
    at_root, under_rollout = config.tool_config_path, config.rollout.tool_config_path
    if at_root is not None and under_rollout is not None and at_root != under_rollout:
        raise ConfigError(
            f"`tool_config_path` ({at_root}) and `rollout.tool_config_path` ({under_rollout}) differ; keep one of them"
        )
    path = at_root or under_rollout
    if config.tools is not None and path is not None:
        raise ConfigError(f"`tools` and `tool_config_path` ({path}) both name the tools of this run; keep one of them")
    if path is not None:
        key, configs = f"{Path(path).name}: tools", load_tool_file(Path(path))
    else:
        key, configs = "tools", _short_form(config.tools.code_judge if config.tools else None)
    for index, tool in enumerate(configs):
        if judge_keys := JUDGE_TOOLS.get(tool.class_name):
            judge_keys(**tool.config).check_address(config.judge, key=f"{key}[{index}].config")
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
    except (YAMLError, OmegaConfBaseException, ValueError) as error:
        raise ConfigError(f"{file.name}: not valid YAML: {one_line(error)}") from error
    entries = tree.get("tools") if isinstance(tree, dict) and len(tree) == 1 else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{file.name}: the file must hold one key, `tools`, a list of tools that is not empty")
    return [
        _read_server(entry, file, prefix=f"tools[{index}].")
        if isinstance(entry, dict) and entry.get("type") == "mcp"
        else _read_entry(entry, source=file.name, prefix=f"tools[{index}]")
        for index, entry in enumerate(entries)
    ]


def with_server_tools(configs: Sequence[ToolConfig]) -> list[ToolConfig]:
    """Replace each MCP server by its tools, which it is started or reached for.

    Raises:
        ConfigError: it does not answer, or lacks a tool that its entry names.
    """
    if not any(config.class_name == MCP_TOOL for config in configs):
        return list(configs)
    from agentrl.tools.mcp.listing import with_listed_tools  # needs the extra `mcp`

    return with_listed_tools(configs)


def _short_form(judge: CodeJudgeTools | None) -> list[ToolConfig]:
    if judge is None:
        return []
    address = {"host_addr": judge.host_addr, "host_port": judge.host_port}
    config = {
        **address,
        "request_processor_concurrency": judge.concurrency,
        "request_processor_batch_size": judge.batch_size,
        "request_processor_batch_timeout_seconds": judge.batch_timeout_seconds,
    }
    checked = read_plain_config(PythonToolConfig, config, source="`tools.code_judge`")
    tools = [ToolConfig(class_name=PYTHON_TOOL, config=checked.model_dump())]
    if judge.enable_jupyter:
        tools.append(ToolConfig(class_name=JUPYTER_TOOL, config=JupyterToolConfig(**address).model_dump()))
    return tools


def _read_server(plain: dict[str, Any], file: Path, *, prefix: str) -> ToolConfig:
    if find_spec("mcp") is None:
        raise ConfigError(f"{file.name}: `{prefix}type` is `mcp`, which needs `pip install 'agentrl[mcp]'`")
    server = read_plain_config(McpServerConfig, plain, source=file.name, prefix=prefix)
    settings = McpToolConfig(server=server, folder=str(file.resolve().parent))
    return ToolConfig(class_name=MCP_TOOL, config=settings.model_dump())


def _read_entry(plain: Any, *, source: str, prefix: str) -> ToolConfig:
    if not isinstance(plain, dict) or len({"class_name", "function"} & plain.keys()) != 1:
        # Not its values: an MCP server without its `type` may hold secrets.
        shown = f"has the keys {', '.join(map(str, plain))}" if isinstance(plain, dict) else f"is {plain!r:.100}"
        raise ConfigError(f"{source}: `{prefix}` {shown}; name the tool by `class_name`, `function` or `type: mcp`")
    entry = read_plain_config(_Entry, plain, source=source, prefix=f"{prefix}.")
    config = entry.config if entry.function is None else {"function": entry.function, **entry.config}
    if config.get("type", "native") != "native":
        raise ConfigError(f"{source}: `{prefix}.config.type` is {config['type']!r}; this version knows `native` only")
    if model := _BUILT_IN.get(entry.class_name):
        config = read_plain_config(model, config, source=source, prefix=f"{prefix}.config.").model_dump()
    schema = None if entry.tool_schema is None else entry.tool_schema.model_dump(exclude_unset=True)
    return ToolConfig(class_name=entry.class_name, config=config, tool_schema=schema)
