import sys
from pathlib import Path

import pytest

from agentrl.errors import ToolError
from agentrl.judge.connection import JudgeAddress, ToolContext
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import build_tools
from agentrl.tools.function_tool import FUNCTION_TOOL
from agentrl.tools.python_tool import PYTHON_TOOL

ADDRESS = {"host_addr": "127.0.0.1", "host_port": 1}

USERS_MODULE = """
import asyncio
from agentrl.tools.base import ToolSchema
from agentrl.types import ToolResult, ToolStatus


class Good:
    def __init__(self, config, schema):
        self.config = config
        self.schema = schema or ToolSchema(name="good", description="", parameters={"type": "object"})

    async def start(self): ...
    async def call(self, episode, arguments, *, deadline):
        return ToolResult(status=ToolStatus.OK, text=self.config["greeting"])
    async def end_episode(self, episode): ...
    async def aclose(self): ...


class NoSchema(Good):
    def __init__(self, config, schema):
        self.schema = schema


class SyncCall(Good):
    def call(self, episode, arguments, *, deadline): ...


class NoDeadline(Good):
    async def call(self, episode, arguments): ...


class OddConstructor(Good):
    def __init__(self, config): ...


class InContext(Good):
    def __init__(self, config, schema, *, context):
        super().__init__(config, schema)
        self.judge = context.judge


class Picky(Good):
    def __init__(self, config, schema):
        raise KeyError("api_key")


class NoGpu(Good):
    def __init__(self, config, schema):
        raise RuntimeError("no GPU")


class NoPackage(Good):
    def __init__(self, config, schema):
        import no_such_package


def a_function(x: int) -> int:
    return x
"""


@pytest.fixture(autouse=True)
def users_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "users_tools.py").write_text(USERS_MODULE)
    (tmp_path / "broken_tools.py").write_text("import no_such_package")
    (tmp_path / "raising_tools.py").write_text("no_such_name")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "users_tools", raising=False)


def schema(name: str) -> dict[str, object]:
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    return {"type": "function", "function": {"name": name, "description": "", "parameters": parameters}}


def test_a_users_class_is_built_with_its_config() -> None:
    tools = build_tools([ToolConfig(class_name="users_tools.Good", config={"greeting": "hello"})])
    assert list(tools) == ["good"]
    assert tools["good"].config == {"greeting": "hello"}  # pyright: ignore[reportAttributeAccessIssue] - the user's own


def test_a_schema_in_the_yaml_wins_over_the_class() -> None:
    config = ToolConfig(class_name="users_tools.Good", tool_schema=schema("renamed"))
    assert list(build_tools([config])) == ["renamed"]


def test_tools_keep_their_order_and_one_class_may_serve_twice() -> None:
    configs = [ToolConfig(class_name=PYTHON_TOOL, config=ADDRESS, tool_schema=schema(name)) for name in ("b", "a")]
    assert list(build_tools(configs)) == ["b", "a"]


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ToolError, match="its name `python_code_with_standard_io` is taken"):
        build_tools([ToolConfig(class_name=PYTHON_TOOL, config=ADDRESS)] * 2)


@pytest.mark.parametrize(
    ("class_name", "message"),
    [
        (
            "no_such_module.Tool",
            r"`no_such_module.Tool`: module `no_such_module` cannot be imported.*beside the config",
        ),
        (
            "broken_tools.Tool",
            r"`broken_tools` cannot be imported: ModuleNotFoundError at broken_tools\.py:\d+: No module named 'no_such_",
        ),
        (
            "raising_tools.Tool",
            r"`raising_tools` cannot be imported: NameError at raising_tools\.py:1: name 'no_such_name'",
        ),
        ("users_tools.Missing", r"module `users_tools` .* has no `Missing`"),
        ("users_tools.NoSchema", r"`users_tools.NoSchema`: it has no schema; give it a `tool_schema`"),
        ("users_tools.SyncCall", r"it has no `async def call`"),
        (
            "users_tools.NoDeadline",
            r"`users_tools.NoDeadline`: `call` must take `\(episode, arguments, \*, deadline\)`: got an unexpected",
        ),
        (
            "users_tools.OddConstructor",
            r"`users_tools.OddConstructor`: `OddConstructor` must take `\(config, schema\)`",
        ),
        ("Python Tool", r"`Python Tool`; it must be an import path such as `my_module.MyClass`"),
        ("users_tools.Picky", r"cannot be built: KeyError at users_tools\.py:\d+: 'api_key'"),
        (
            "users_tools.NoGpu",
            r"tool `users_tools.NoGpu`: cannot be built: RuntimeError at users_tools\.py:\d+: no GPU",
        ),
        (
            "users_tools.NoPackage",
            r"`users_tools.NoPackage`: cannot be built: ModuleNotFoundError at users_tools\.py:\d+: No module",
        ),
        ("users_tools.a_function", r"it is no class; a function is named by `function: users_tools.a_function`"),
    ],
)
def test_a_class_that_is_no_tool_is_refused_with_the_reason(class_name: str, message: str) -> None:
    with pytest.raises(ToolError, match=message):
        build_tools([ToolConfig(class_name=class_name)])


def test_a_constructor_with_a_parameter_context_gets_the_runs_judge() -> None:
    judge = JudgeAddress(urls=("http://127.0.0.1:1",), token="s3cret")
    tool = build_tools([ToolConfig(class_name="users_tools.InContext")], ToolContext(judge=judge))["good"]
    assert tool.judge == judge  # pyright: ignore[reportAttributeAccessIssue] - the user's own


def test_a_missing_judge_address_is_named() -> None:
    with pytest.raises(ToolError, match="`host_addr` and `host_port` are not set"):
        build_tools([ToolConfig(class_name=PYTHON_TOOL)])


def test_a_token_that_is_not_exported_is_named_without_its_value() -> None:
    with pytest.raises(ToolError, match="`token_env`: the variable `NO_SUCH_TOKEN` is not set"):
        build_tools([ToolConfig(class_name=PYTHON_TOOL, config=ADDRESS | {"token_env": "NO_SUCH_TOKEN"})])


def look_up(text: str) -> str:
    """Look a text up."""
    return text


def test_two_functions_of_one_name_are_named_by_their_path() -> None:
    path = f"{__name__}.look_up"
    with pytest.raises(ToolError, match=rf"tool `{path}`: its name `look_up` is taken"):
        build_tools([ToolConfig(class_name=FUNCTION_TOOL, config={"function": path})] * 2)
