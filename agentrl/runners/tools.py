"""The command behind `python -m agentrl.tools`: start a tool of your own, see what the policy sees of it, and call it.

python -m agentrl.tools init look_up                          # look_up.py, look_up.yaml and test_look_up.py
python -m agentrl.tools check look_up.yaml [--model FOLDER]   # builds it in a fresh process, shows what the policy sees
python -m agentrl.tools call look_up.yaml '{"text": "x"}'     # makes one call
"""

import argparse
import contextlib
import json
import multiprocessing
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from agentrl.agent_loop.chat_tokens import ChatTokens
from agentrl.config.schema.judge import JudgeSection
from agentrl.config.schema.reward import RewardSection
from agentrl.config.schema.run import ModelSection
from agentrl.errors import ConfigError, DataError
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.models.tokenizer import light_tokenizer_class
from agentrl.run.judges import driver_judge
from agentrl.run.preflight.models.folders import check_model_path
from agentrl.runners.command_line import run_command
from agentrl.tools.base import Episode, ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.executor import ToolExecutor
from agentrl.tools.loader import load_tool_file, with_server_tools
from agentrl.types import Deadline, ToolCall, ToolStatus

_TIMEOUT_S = 60.0
_NAME = re.compile(r"[a-z_][a-z0-9_]*")
_NOBODY = ToolContext(judge=JudgeAddress(urls=("http://127.0.0.1:9",)))
"""Context of a tool that is built and not called."""
_FILES = {
    "{name}.py": '''"""The tool `{name}`, a function; the policy sees its name, its docstring and its type hints."""


def {name}(text: str) -> str:
    """Count the letters of a text.

    Args:
        text: any text.
    """
    return f"{{len(text)}} letters"
''',
    "{name}.yaml": """# Tools of a run: `tool_config_path: {name}.yaml` in its config.
tools:
  - function: {name}.{name}
""",
    "test_{name}.py": """from {name} import {name}


def test_{name}():
    assert {name}("abc") == "3 letters"
""",
}


def init(name: str, folder: Path) -> None:
    """Write a tool, its YAML and its test into `folder`.

    Raises:
        ConfigError: the name is no Python name in lower case, or one of the files exists.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"`{name}`: a tool's name is of lower-case letters, digits and `_`, such as `look_up`")
    files = {folder / file.format(name=name): text.format(name=name) for file, text in _FILES.items()}
    if existing := [str(file) for file in files if file.exists()]:
        raise ConfigError(f"{', '.join(existing)}: exists already. Choose another name or folder")
    for file, text in files.items():
        file.write_text(text)
    print("wrote", ", ".join(str(file) for file in files))
    print(f"next: python -m agentrl.tools check {folder / name}.yaml")


def check(file: Path, model: str | None) -> None:
    """Build the tools in a fresh process, as a worker does, and print what the policy sees of them."""
    configs = _load(file)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as worker:
        schemas = worker.submit(_schemas, configs, str(file.resolve().parent)).result()
    for config, schema in zip(configs, schemas, strict=True):
        print(f"{config.label}: built in a fresh process from plain data")
        if model is None:
            print(json.dumps(schema, indent=2))
    if model is not None:
        check_model_path(model, key="--model")
        tokens = ChatTokens.of_model(ModelSection(path=model), schemas, light_tokenizer_class(model))
        print(f"calls have the format `{tokens.format_name}`; a prompt begins with\n")
        print(tokens.decode_all(tokens.prompt([{"role": "user", "content": "..."}])))


async def call(file: Path, arguments: str, tool: str | None) -> None:
    """Call a tool of the file once, and print its answer as the policy reads it.

    Raises:
        ConfigError: the arguments are not a JSON object or the tool refuses them, or it is not clear which tool is meant.
        DataError: the call failed, as the printed text says.
        RolloutError: the tool's infrastructure failed.
    """
    configs = _load(file)
    try:
        given = json.loads(arguments)
    except ValueError as error:
        raise ConfigError(f"{arguments!r:.80}: not JSON: {error}") from error
    if not isinstance(given, dict):
        raise ConfigError(f'{arguments!r:.80}: the arguments are a JSON object, such as \'{{"text": "x"}}\'')
    async with driver_judge(configs, RewardSection(), JudgeSection()) as judge:
        executor = ToolExecutor(build_tools(configs, ToolContext(judge=judge)), timeout_s=_TIMEOUT_S)
        await executor.start()
        async with contextlib.aclosing(executor):
            names = [schema.name for schema in executor.schemas]
            if (tool is None and len(names) > 1) or (tool is not None and tool not in names):
                raise ConfigError(f"{file}: choose one of its tools with `--tool`: {', '.join(names)}")
            episode = Episode(episode_id="call", prompt_id="call")
            wanted = ToolCall(call_id="0", name=tool or names[0], arguments=given)
            [result] = await executor.execute([wanted], episode, deadline=Deadline.after(_TIMEOUT_S))
            await executor.end_episode(episode)
    if result.status is ToolStatus.INVALID_ARGUMENTS:
        raise ConfigError(f"{wanted.name}: {result.text.removeprefix('failure: ')}. `check` shows what it takes")
    print(f"{result.status} in {result.wall_time_s:.3g} s{f'; it raised {result.cause}' if result.cause else ''}")
    print(result.text)
    if result.status is not ToolStatus.OK:
        raise DataError(f"{wanted.name}: the call failed (`{result.status}`)")


def _load(file: Path) -> list[ToolConfig]:
    sys.path.insert(0, str(file.resolve().parent))  # where a run finds modules of the user's
    return with_server_tools(load_tool_file(file))


def _schemas(configs: Sequence[ToolConfig], folder: str) -> list[dict[str, Any]]:
    sys.path.insert(0, folder)
    return [tool.schema.as_template_dict() for tool in build_tools(configs, _NOBODY).values()]


def main() -> int:
    """Run a command and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.tools", description="Write, check and call tools.")
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("init", help="write a tool, its YAML and its test")
    new.add_argument("name")
    new.add_argument("--folder", type=Path, default=Path())
    checked = commands.add_parser("check", help="build the tools, and show what the policy sees")
    checked.add_argument("file", type=Path, help="tool YAML")
    checked.add_argument("--model", help="model folder whose chat template shows the tools")
    called = commands.add_parser("call", help="make one call")
    called.add_argument("file", type=Path, help="tool YAML")
    called.add_argument("arguments", help="JSON object")
    called.add_argument("--tool", help="name of the tool, if the file has several")
    words = parser.parse_args()

    async def command() -> None:
        if words.command == "init":
            init(words.name, words.folder)
        elif words.command == "check":
            check(words.file, words.model)
        else:
            await call(words.file, words.arguments, words.tool)

    return run_command(command, when_stopped="nothing was left behind")
