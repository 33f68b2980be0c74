"""Where a tool or a reward finds the judge: the keys that both have in their plain config."""

import os
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig
from agentrl.config.schema import CodeJudgeTools, JudgeSection
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient


class JudgeConnection(PlainConfig):
    """How to reach the judge, under the names of rStar2-Agent's tool configuration."""

    host_addr: str | None = None
    """Address of the judge; the runner fills it in where it is absent."""
    host_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the judge; the runner fills it in where it is absent."""
    token_env: str | None = None
    """Environment variable that holds the judge's bearer token."""
    request_processor_concurrency: int = Field(default=CodeJudgeTools.concurrency, ge=1)
    """Requests in flight at once."""
    request_processor_batch_size: int = Field(default=CodeJudgeTools.batch_size, ge=1, le=4096)
    """Submissions sent in one request at most."""
    request_processor_batch_timeout_seconds: float = Field(default=CodeJudgeTools.batch_timeout_seconds, gt=0)
    """Wall clock of one request."""

    def client(self, *, owner: str) -> JudgeClient:
        """Return a client, not yet started; `owner` is who asks, for the message.

        Raises:
            ConfigError: the address is still absent, or the token's variable is not set.
        """
        if self.host_addr is None or self.host_port is None:
            raise ConfigError(
                f"{owner}: `host_addr` and `host_port` of the judge are not set, and no run filled them in; give both"
            )
        token = None
        if self.token_env is not None:
            token = os.environ.get(self.token_env)
            if not token:
                raise ConfigError(
                    f"{owner}: `token_env` is `{self.token_env}`, but that variable is not set in this process; "
                    "export the judge's token under that name"
                )
        host = f"[{self.host_addr}]" if ":" in self.host_addr else self.host_addr
        return JudgeClient(
            [f"http://{host}:{self.host_port}"],
            token=token,
            concurrency=self.request_processor_concurrency,
            batch_size=self.request_processor_batch_size,
            batch_timeout_s=self.request_processor_batch_timeout_seconds,
        )


def fill_address(config: Mapping[str, Any], *, host: str, port: int, token_env: str | None = None) -> dict[str, Any]:
    """Return `config` with the judge's address where it has none; `token_env` only where it has room for one."""
    filled = dict(config)
    for key, value in {"host_addr": host, "host_port": port, "token_env": token_env}.items():
        if key in filled and filled[key] is None:
            filled[key] = value
    return filled


def lacks_address(config: Mapping[str, Any]) -> bool:
    """Return whether `config` asks for a judge (`host_addr: null`) that the run has to name."""
    return "host_addr" in config and config["host_addr"] is None


def check_address(config: Mapping[str, Any], judge: JudgeSection, *, key: str) -> None:
    """Refuse an address that contradicts the run's own, or half an address that the run's judge cannot complete.

    Args:
        config: the plain config of a tool or reward.
        judge: the run's own judge.
        key: where `config` stands, for the message.

    Raises:
        ConfigError: names both keys and values.
    """
    for name, of_run in (("host_addr", judge.host_addr), ("host_port", judge.host_port)):
        own = config.get(name)
        if own is not None and of_run is not None and own != of_run:
            raise ConfigError(
                f"`{key}.{name}` is {own!r}, but `judge.{name}` is {of_run!r}; leave one of them out, or make them equal"
            )
    half = {"host_addr", "host_port"} <= config.keys() and (config["host_addr"] is None) != (
        config["host_port"] is None
    )
    if half and judge.host_addr is None:
        raise ConfigError(f"`{key}` names only one of `host_addr` and `host_port`; give both, or neither")
