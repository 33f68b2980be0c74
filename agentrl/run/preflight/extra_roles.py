"""Looks, before any process starts, whether the classes of extra roles can be workers and serve the tools that call them."""

import inspect
from collections.abc import Sequence
from typing import Any

from agentrl.cluster.ray.spawn import check_worker_class
from agentrl.config.class_path import import_by_path
from agentrl.config.schema.cluster import ClusterSection
from agentrl.errors import ConfigError
from agentrl.tools.base import ToolConfig
from agentrl.tools.builder import read_tool_schema
from agentrl.tools.schema_check import validator_of
from agentrl.tools.worker_tool import EPISODE_ID, WORKER_TOOL


def check_extra_roles(cluster: ClusterSection, tools: Sequence[ToolConfig]) -> None:
    """Refuse what would fail later.

    Raises:
        ConfigError: a class cannot be imported or cannot be a worker, or a tool asks for a role or a method that is not there,
            or that cannot be called with what the tool passes.
        ToolError: the parameters of a tool are no JSON schema.
    """
    classes: dict[str, type] = {}
    for role, extra in cluster.extra_roles.items():
        key = f"cluster.extra_roles.{role}.class_path"
        cls = import_by_path(extra.class_path, key=key)
        try:
            check_worker_class(cls)
        except ConfigError as error:
            raise ConfigError(f"`{key}`: {error}") from error
        classes[role] = cls
    for tool in tools:
        if tool.class_name == WORKER_TOOL:
            _check_tool(tool, classes)


def _check_tool(tool: ToolConfig, classes: dict[str, type]) -> None:
    role = tool.config["role"]
    if role not in classes:
        known = ", ".join(f"`{name}`" for name in classes) or "none"
        raise ConfigError(
            f"tool `{WORKER_TOOL}`: its `role` is `{role}`, which is none of `cluster.extra_roles` ({known})"
        )
    for key in ("method", "end_method"):
        if tool.config[key] is not None:
            _check_method(classes[role], tool.config[key], key)
    if tool.tool_schema is None:
        raise ConfigError(
            f"tool `{WORKER_TOOL}` of role `{role}` has no `tool_schema`, from which the policy would know it"
        )
    _check_calls(tool, classes[role])


def _check_method(cls: type, method: str, key: str) -> None:
    where = f"tool `{WORKER_TOOL}`: `{key}` is `{method}`"
    if method.startswith("_"):
        raise ConfigError(
            f"{where}, and names that begin with `_` are the class's own; call the method by another name"
        )
    if not inspect.iscoroutinefunction(getattr(cls, method, None)):
        raise ConfigError(
            f"{where}, and `{cls.__qualname__}` has no `async def {method}`; "
            "a worker answers many calls at once, so its methods are async"
        )


def _check_calls(tool: ToolConfig, cls: type) -> None:
    """Refuse methods that cannot be called as the tool does, which would be blamed on the policy at every call."""
    assert tool.tool_schema is not None
    schema = read_tool_schema(tool.tool_schema)
    validator_of(schema)
    properties, required = (schema.parameters.get(key, ()) for key in ("properties", "required"))
    if EPISODE_ID in properties:
        raise ConfigError(
            f"tool `{schema.name}`: its `tool_schema` has the property `{EPISODE_ID}`, which the policy does not choose; "
            "call it something else"
        )
    method, end_method = tool.config["method"], tool.config["end_method"]
    # What the schema does not ask for may be absent or there, and may be anything where the schema says so.
    others = ["some_other_name"] if schema.parameters.get("additionalProperties") else []
    _check_call(cls, method, required, key="method", name=schema.name)
    _check_call(cls, method, [*required, *properties, *others], key="method", name=schema.name)
    if end_method is not None:
        _check_call(cls, end_method, (), key="end_method", name=schema.name)


def _check_call(cls: type, method: str, arguments: Sequence[str], *, key: str, name: str) -> None:
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
