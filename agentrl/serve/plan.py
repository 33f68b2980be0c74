"""A service before it starts: everything that is checked first."""

import socket
from dataclasses import dataclass

from agentrl.config.load import LoadedConfig
from agentrl.config.schema.run import RunConfig, ServiceSection
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.run.plan import EvaluationPlan, check_plugins, check_without_actor
from agentrl.run.preflight.models.dtype import choose_dtype
from agentrl.servers.session import bearer_token
from agentrl.tools.base import ToolConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """A service that could start."""

    run: EvaluationPlan
    """Plan without prompts: these come with the requests."""
    token: str | None
    socket: socket.socket
    """Bound, and not listening yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedService:
    """The parts of a config that a service needs, all checked."""

    loaded: LoadedConfig
    notes: list[str]
    tools: list[ToolConfig]
    token: str | None

    @property
    def config(self) -> RunConfig:
        """The resolved config."""
        return self.loaded.config


def check_service(loaded: LoadedConfig) -> CheckedService:
    """Check config, tools, reward and model of a service; nothing is written, and no process has started.

    Raises:
        ConfigError, ToolError: where, what and the way out.
    """
    loaded, notes = choose_dtype(loaded)
    config = loaded.config
    tools = check_plugins(loaded)
    check_without_actor(config, tools)
    token = bearer_token(config.service.token_env, key="service.token_env")
    return CheckedService(loaded=loaded, notes=notes, tools=tools, token=token)


def prepare_service(loaded: LoadedConfig) -> ServicePlan:
    """Check a service, bind its port and open its folder; see `check_service`."""
    checked = check_service(loaded)
    # Lost trajectories are the client's to judge: they come as lines, and end no service.
    rollout = checked.config.rollout.model_copy(update={"max_infra_error_share": 1.0})
    config = checked.config.model_copy(update={"rollout": rollout})
    bound = bind(config.service)
    directory = RunDirectory(config)
    directory.open_for_service()
    plan = EvaluationPlan(
        loaded=LoadedConfig(config=config, path=loaded.path),
        directory=directory,
        tools=checked.tools,
        validation_prompts=[],
        warnings=[],
        notes=checked.notes,
    )
    return ServicePlan(run=plan, token=checked.token, socket=bound)


def bind(service: ServiceSection) -> socket.socket:
    """Return a socket bound to the service's address, which refuses connections until somebody listens.

    Raises:
        ConfigError: the address is in use or not this machine's.
    """
    bound = socket.socket(socket.AF_INET6 if ":" in service.host else socket.AF_INET)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # not held up by connections of an earlier service
        bound.bind((service.host, service.port))
    except OSError as error:
        bound.close()
        raise ConfigError(
            f"service.host, service.port: cannot listen on {service.host}:{service.port}: {error.strerror or error}. Name "
            "another port, or end what listens there"
        ) from error

    return bound
