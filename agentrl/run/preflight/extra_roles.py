"""Check of the classes of extra roles, and of the tools that call them, before any process starts."""

import inspect
from collections.abc import Sequence

from agentrl.config.class_path import import_by_path
from agentrl.config.schema.cluster import ClusterSection
from agentrl.errors import ConfigError
from agentrl.tools.base import ToolConfig
from agentrl.tools.worker_tool import WORKER_TOOL


def check_extra_roles(cluster: ClusterSection, tools: Sequence[ToolConfig]) -> None:
    """Refuse classes that cannot be workers, and methods that they lack; a method's arguments are checked at each call.

    Raises:
        ConfigError: names the class, the role or the method.
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
            _check_methods(tool, classes)


def _check_methods(tool: ToolConfig, classes: dict[str, type]) -> None:
    role = tool.config["role"]
    if role not in classes:
        known = ", ".join(f"`{name}`" for name in classes) or "none"
        raise ConfigError(
            f"tool `{WORKER_TOOL}`: its `role` is `{role}`, which is none of `cluster.extra_roles` ({known})"
        )
    for key in ("method", "end_method"):
        method = tool.config[key]
        if method is None:
            continue
        if method.startswith("_") or not inspect.iscoroutinefunction(getattr(classes[role], method, None)):
            raise ConfigError(
                f"tool `{WORKER_TOOL}`: `{key}` is `{method}`, and `{classes[role].__qualname__}` has no `async def {method}` "
                "for calls from outside. A worker answers many calls at once, so its methods are async; names with `_` are its "
                "own"
            )
