"""Connection of a tool or a reward to the judges: the keys of their plain config."""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pydantic import Field

from agentrl.config.judge_address import judge_urls
from agentrl.config.plain import PlainConfig
from agentrl.config.schema.run import CodeJudgeTools, JudgeSection
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient
from agentrl.servers.session import bearer_token


class JudgeConnection(PlainConfig):
    """Connection to the judges, under the names of rStar2-Agent's tool configuration."""

    host_addr: str | None = None
    """Address of the judge; absent: filled in by the runner."""
    host_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the judge; absent: filled in by the runner."""
    hosts: list[str] | None = None
    """Instead of both: `host:port` or URLs of several judges; absent: filled in by the runner if it has several."""
    token_env: str | None = None
    """Environment variable that holds the judges' bearer token."""
    request_processor_concurrency: int = Field(default=CodeJudgeTools.concurrency, ge=1)
    """Requests in flight at once; nearly done ones are not counted."""
    request_processor_batch_size: int = Field(default=CodeJudgeTools.batch_size, ge=1, le=4096)
    """Most submissions in one request."""
    request_processor_batch_timeout_seconds: float = Field(default=CodeJudgeTools.batch_timeout_seconds, gt=0)
    """Wall clock of one request."""

    def client(self, *, owner: str) -> JudgeClient:
        """Return a client, not started yet; `owner` is for the error message.

        Raises:
            ConfigError: the address is still absent or is malformed, or the token's variable is not set.
        """
        if not self.hosts and (self.host_addr is None or self.host_port is None):
            raise ConfigError(
                f"{owner}: `host_addr` and `host_port` are not set, and no run filled them in. Set both, or `hosts`"
            )
        return JudgeClient(
            judge_urls(host_addr=self.host_addr, host_port=self.host_port, hosts=self.hosts, key=f"{owner}: "),
            token=bearer_token(self.token_env, key=f"{owner}: `token_env`"),
            concurrency=self.request_processor_concurrency,
            batch_size=self.request_processor_batch_size,
            batch_timeout_s=self.request_processor_batch_timeout_seconds,
        )


def fill_address(config: Mapping[str, Any], urls: Sequence[str], *, token_env: str | None = None) -> dict[str, Any]:
    """Return `config` with the addresses of the run's judges filled in for keys that are None.

    Several judges go into `hosts`; a config without that key gets the first one.
    """
    first = urlsplit(urls[0])
    values: dict[str, Any] = {"host_addr": first.hostname, "host_port": first.port, "token_env": token_env}
    if lacks_address(config) and "hosts" in config and (len(urls) > 1 or first.scheme != "http"):
        values = {"hosts": list(urls), "token_env": token_env}
    elif config.get("hosts"):
        values = {"token_env": token_env}
    filled = dict(config)
    for key, value in values.items():
        if key in filled and filled[key] is None:
            filled[key] = value
    return filled


def lacks_address(config: Mapping[str, Any]) -> bool:
    """Return whether the run must fill in the judge's address (`host_addr: null`)."""
    return "host_addr" in config and config["host_addr"] is None and not config.get("hosts")


def named_urls(config: Mapping[str, Any], *, key: str) -> tuple[str, ...]:
    """Return the judges in the plain config of a tool or reward; empty if the run fills them in.

    Raises:
        ConfigError: an address is malformed, or given twice and different.
    """
    host_addr, host_port = config.get("host_addr"), config.get("host_port")
    if host_addr is None or host_port is None:
        host_addr = host_port = None
    return judge_urls(host_addr=host_addr, host_port=host_port, hosts=config.get("hosts"), key=f"{key}.")


def check_address(config: Mapping[str, Any], judge: JudgeSection, *, key: str) -> None:
    """Refuse an address that contradicts the run's own, or half an address that the run's judge cannot complete.

    Args:
        config: the plain config of a tool or reward.
        judge: the run's own judges.
        key: config key of `config`, for the message.

    Raises:
        ConfigError: the addresses are contradictory or incomplete.
    """
    if "host_addr" not in config:
        return
    for name, of_run in (("host_addr", judge.host_addr), ("host_port", judge.host_port)):
        own = config.get(name)
        if own is not None and of_run is not None and own != of_run:
            raise ConfigError(
                f"`{key}.{name}` is {own!r}, but `judge.{name}` is {of_run!r}; leave one of them out, or make them equal"
            )
    half = "host_port" in config and (config["host_addr"] is None) != (config["host_port"] is None)
    if half and judge.host_addr is None:
        raise ConfigError(f"`{key}` names only one of `host_addr` and `host_port`; give both, or neither")
    urls, of_run = named_urls(config, key=key), run_urls(judge)
    if urls and of_run and set(urls) != set(of_run):
        raise ConfigError(
            f"`{key}` names the judges {', '.join(urls)}, but `judge` names {', '.join(of_run)}; leave one of them out, "
            "or make them equal"
        )


def run_urls(judge: JudgeSection) -> tuple[str, ...]:
    """Return the judges in the run's section `judge`.

    Raises:
        ConfigError: an address is malformed, or given twice and different.
    """
    return judge_urls(host_addr=judge.host_addr, host_port=judge.host_port, hosts=judge.hosts, key="judge.")
