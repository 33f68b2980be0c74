"""Looks, before any process starts, whether the classes of extra roles can be workers and serve the tools that call them."""

import inspect
from collections.abc import Sequence

from agentrl.cluster.spawn import check_worker_class
from agentrl.config.class_path import import_by_path
from agentrl.config.cluster_schema import ClusterSection
from agentrl.errors import ConfigError
from agentrl.tools.base import ToolConfig
from agentrl.tools.worker_tool import WORKER_TOOL


def check_extra_roles(cluster: ClusterSection, tools: Sequence[ToolConfig]) -> None:
    """Refuse what would fail later.

    Raises:
        ConfigError: a class cannot be imported or cannot be a worker, or a tool asks for a role or a method that is not there.
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
        method = tool.config[key]
        if method is not None and not inspect.iscoroutinefunction(getattr(classes[role], method, None)):
            raise ConfigError(
                f"tool `{WORKER_TOOL}`: `{key}` is `{method}`, and `{classes[role].__qualname__}` has no `async def {method}`; "
                "a worker answers many calls at once, so its methods are async"
            )
    if tool.tool_schema is None:
        raise ConfigError(
            f"tool `{WORKER_TOOL}` of role `{role}` has no `tool_schema`, from which the policy would know it"
        )
