"""A plain Python function as a tool: `function: my_module.my_function` in the tool YAML.

Type hints give the schema, the docstring (Google style) the descriptions: for `def look_up(word: str, limit: int = 3)` the
policy sees the summary, that `word` is required, and the `Args:` of `word` and `limit`.
"""

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, cast

import docstring_parser
from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ArgsKwargs

from agentrl.config.class_path import import_by_path
from agentrl.config.plain import PlainConfig, read_plain_config
from agentrl.errors import ConfigError
from agentrl.tools.base import Episode, ToolSchema
from agentrl.tools.result_text import as_result, failed_call, returns_none
from agentrl.types import Deadline, ToolResult, ToolStatus
from agentrl.user_code import contained, contained_coroutine, described

FUNCTION_TOOL = "agentrl.tools.function_tool.FunctionTool"

_MAX_THREADS = 1024
"""Concurrent calls of one sync function per worker; threads start when needed."""


class FunctionToolConfig(PlainConfig):
    """The keys of a function tool."""

    type: Literal["native"] = "native"
    function: str
    """Import path of the function."""


class FunctionTool:
    """Calls a function with the policy's arguments, checked and converted by its type hints.

    Calls of a sync function run in parallel threads. It returns the result's text (anything but a `str` as JSON), or a
    `ToolResult`; None is a result only if the type hint allows it. An exception is a failed call whose text names it, since a
    function cannot refuse arguments otherwise. `ConnectionError` and `TimeoutError` blame the infrastructure, and pass through.
    """

    def __init__(self, config: dict[str, Any], schema: ToolSchema | None) -> None:
        """Import the function; `schema` None infers one.

        Raises:
            ConfigError: no such function, or its signature cannot be described.
        """
        path = read_plain_config(FunctionToolConfig, config, source=f"tool `{FUNCTION_TOOL}`").function
        function: Any = import_by_path(path, key="function")
        if not inspect.isfunction(function):
            raise ConfigError(f"`function` is `{path}`, which is no function; name a `def`, which may call it")
        self._is_async = inspect.iscoroutinefunction(function)
        self._calls = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix=f"tool {function.__name__}")
        self._none_is_result = returns_none(function)
        self.schema = schema or infer_schema(function)
        self._adapter = TypeAdapter[Any](cast(Any, function))

    async def start(self) -> None:
        """Do nothing: a function has no sessions."""

    async def call(self, episode: Episode, arguments: dict[str, Any], *, deadline: Deadline) -> ToolResult:
        """Call the function."""
        try:
            outcome = await self._run(arguments)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            reason = f"invalid arguments: `{'.'.join(map(str, first['loc']))}`: {first['msg']}"
            return ToolResult(status=ToolStatus.INVALID_ARGUMENTS, text=f"failure: {reason}")
        except Exception as error:  # noqa: BLE001 - of the user's function
            return failed_call(error)
        return outcome if isinstance(outcome, ToolResult) else as_result(outcome, none_is_result=self._none_is_result)

    async def end_episode(self, episode: Episode) -> None:
        """Do nothing: a function keeps no state."""

    async def aclose(self) -> None:
        """Shut the threads down."""
        self._calls.shutdown(wait=False, cancel_futures=True)

    async def _run(self, arguments: dict[str, Any]) -> Any:
        packed = ArgsKwargs((), arguments)
        if self._is_async:
            return await contained_coroutine(contained(self._adapter.validate_python, packed))
        returned = await asyncio.get_running_loop().run_in_executor(
            self._calls, contained, self._adapter.validate_python, packed
        )
        # A decorator may hide that the function is async.
        return await contained_coroutine(returned) if inspect.iscoroutine(returned) else returned


class _NoTitles(GenerateJsonSchema):
    """Omits pydantic's titles for parameters: they only cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def infer_schema(function: Callable[..., Any]) -> ToolSchema:
    """Return the schema of a function from its type hints and Google docstring.

    Raises:
        ConfigError: a parameter has no type hint, or one that JSON cannot express, or the docstring cannot be read.
    """
    name = function.__name__
    for parameter in inspect.signature(function).parameters.values():
        if parameter.annotation is parameter.empty:
            raise ConfigError(f"function tool `{name}`: parameter `{parameter.name}` has no type hint; add one")
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(f"function tool `{name}`: parameter `{parameter.name}` cannot be given by name")
    try:
        parameters = TypeAdapter[Any](cast(Any, function)).json_schema(schema_generator=_NoTitles)
        docstring = docstring_parser.parse(inspect.getdoc(function) or "", docstring_parser.DocstringStyle.GOOGLE)
    except Exception as error:
        # Hints that are text are evaluated, and may raise anything; most often they name what only a type checker imports.
        raise ConfigError(
            f"function tool `{name}`: its type hints have no JSON form, or its docstring is not in Google style: "
            f"{described(error)}"
        ) from error
    for documented in docstring.params:
        shown = parameters["properties"].get(documented.arg_name)
        if shown is not None and documented.description:
            shown.setdefault("description", " ".join(documented.description.split()))
    return ToolSchema(name=name, description=(docstring.description or "").strip(), parameters=parameters)
