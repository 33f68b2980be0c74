"""Builds the environment of the run config: checked in the driver, built in each worker."""

import inspect
from typing import Any

from agentrl.config.class_path import build, import_by_path
from agentrl.config.schema.run import AgentLoopSection
from agentrl.environments.base import Environment
from agentrl.environments.environment_thread import EnvironmentThread
from agentrl.errors import ConfigError
from agentrl.judge.connection import NO_CONTEXT, ToolContext

_KEY = "agent_loop.environment"
_BASE = f"{Environment.__module__}.{Environment.__name__}"


def check_environment(section: AgentLoopSection) -> None:
    """Import the class, if the config names one.

    Raises:
        ConfigError: it is no class, or does not say what it answers; or there is a config without a class.
    """
    if section.environment is not None:
        _class_of(section.environment)
    elif section.environment_config:
        raise ConfigError(
            "`agent_loop.environment_config` is set without `agent_loop.environment`; name the class there"
        )


def build_environment(
    section: AgentLoopSection, *, timeout_s: float, context: ToolContext = NO_CONTEXT
) -> EnvironmentThread | None:
    """Return the environment in a thread of its own, not started yet; None if the config names none.

    `timeout_s` is the time limit of one of its answers.

    Raises:
        ConfigError: the class cannot be found or built, or lacks a method.
    """
    if section.environment is None:
        return None
    cls, where = _class_of(section.environment), f"environment `{section.environment}`"
    built = build(cls, {"config": dict(section.environment_config)}, Environment, where=where, context=context)
    return EnvironmentThread(built, where, timeout_s=timeout_s)


def _class_of(path: str) -> Any:
    cls = import_by_path(path, key=_KEY)
    if not inspect.isclass(cls):
        raise ConfigError(f"`{_KEY}` is `{path}`, which is no class; name a subclass of `{_BASE}`")
    if getattr(cls, "observe", Environment.observe) is Environment.observe:
        raise ConfigError(f"`{_KEY}` is `{path}`, which has no `async def observe`; see `{_BASE}`")
    return cls
