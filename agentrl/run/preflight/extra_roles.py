"""Check of the classes of extra roles, and of the tools that call them, before any process starts."""

import inspect
from collections.abc import Sequence
from typing import Any

from agentrl.config.class_path import import_by_path
from agentrl.config.schema.cluster import ClusterSection
from agentrl.errors import ConfigError
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import read_tool_schema
from agentrl.tools.schema_check import validator_of
from agentrl.tools.worker_tool import EPISODE_ID, WORKER_TOOL


def check_extra_roles(cluster: ClusterSection, tools: Sequence[ToolConfig]) -> None:
    """Refuse classes that cannot be workers, and methods that cannot be called as their tool does.

    Raises:
        ConfigError: names the class, the role or the method.
        ToolError: the parameters of a tool are no JSON schema.
    """
    classes: dict[str, type] = {}
    for role, extra in cluster.extra_roles.items():
        key = f"cluster.extra_roles.{role}.class_path"
        cls = import_by_path(extra.class_path, key=key)
        if not inspect.isclass(cls):
            raise ConfigError(f"`{key}`: {cls!r} is not a class")
        classes[role] = cls
    for tool in tools:
        if tool.class_name == WORKER_TOOL:
            _check_tool(tool, classes)


def _check_tool(tool: ToolConfig, classes: dict[str, type]) -> None:
    """Refuse a tool whose calls would fail every time, which would be blamed on the policy."""
    role, method, end_method = (tool.config[key] for key in ("role", "method", "end_method"))
    if role not in classes:
        known = ", ".join(f"`{name}`" for name in classes) or "none"
        raise ConfigError(
            f"tool `{WORKER_TOOL}`: its `role` is `{role}`, which is none of `cluster.extra_roles` ({known})"
        )
    if tool.tool_schema is None:
        raise ConfigError(
            f"tool `{WORKER_TOOL}` of role `{role}` has no `tool_schema`, from which the policy would know it"
        )
    schema = read_tool_schema(tool.tool_schema)
    validator_of(schema)
    properties, required = (schema.parameters.get(key, ()) for key in ("properties", "required"))
    if EPISODE_ID in properties:
        raise ConfigError(
            f"tool `{schema.name}`: its `tool_schema` has the property `{EPISODE_ID}`, which the policy does not choose; "
            "call it something else"
        )
    # Optional properties may be absent or present, and further ones present if the schema allows them.
    others = ["some_other_name"] if schema.parameters.get("additionalProperties") else []
    _check_call(classes[role], method, required, key="method", name=schema.name)
    _check_call(classes[role], method, [*required, *properties, *others], key="method", name=schema.name)
    if end_method is not None:
        _check_call(classes[role], end_method, (), key="end_method", name=schema.name)


def _check_call(cls: type, method: str, arguments: Sequence[str], *, key: str, name: str) -> None:
    if method.startswith("_") or not inspect.iscoroutinefunction(getattr(cls, method, None)):
        raise ConfigError(
            f"tool `{name}`: `{key}` is `{method}`, and `{cls.__qualname__}` has no `async def {method}` for calls from "
            "outside. A worker answers many calls at once, so its methods are async; names with `_` are its own"
        )
    given: dict[str, Any] = dict.fromkeys((EPISODE_ID, *arguments))
    itself = () if isinstance(inspect.getattr_static(cls, method), staticmethod | classmethod) else (None,)
    try:
        inspect.signature(getattr(cls, method)).bind(*itself, **given)
    except TypeError as error:
        passed = ", ".join(f"`{argument}=`" for argument in given)
        raise ConfigError(
            f"tool `{name}`: its `{key}`, `{cls.__qualname__}.{method}`, may be called with {passed} (`{EPISODE_ID}`"
            f"{' and what `tool_schema` names' if key == 'method' else ''}), and cannot be: {error}. Change the method"
            f"{', or the properties and `required` of the schema' if key == 'method' else ''}"
        ) from error
