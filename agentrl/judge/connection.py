"""Connection of a tool or a reward to the judges: its own keys, and what the run gives it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import Field

from agentrl.config.plain import PlainConfig
from agentrl.config.schema.addresses import judge_url
from agentrl.config.schema.judge import CodeJudgeTools, JudgeSection
from agentrl.errors import ConfigError
from agentrl.judge.client import JudgeClient
from agentrl.servers.session import bearer_token

_SHORT_FORM = CodeJudgeTools.model_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAddress:
    """The judges of a run. Example: `JudgeAddress(urls=("http://10.0.0.1:8088",), token="s3cret")`."""

    urls: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    """Bearer token of all judges; in the memory of processes, never in a file or a log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """Judge and extra workers of a run, for its tools and its reward; data that crosses Ray.

    A class whose constructor has a parameter `context` receives it. Example: `ToolContext(judge=JudgeAddress(urls=(url,)))`.
    """

    judge: JudgeAddress | None = None
    """None if no tool and no reward asks for a judge."""
    workers: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Handles of the workers of `cluster.extra_roles`, keyed by role."""


NO_CONTEXT = ToolContext()


class JudgeKeys(PlainConfig):
    """Address of the judges, under the names of rStar2-Agent's tool configuration."""

    host_addr: str | None = None
    """Address of the judge; absent: the run's judges."""
    host_port: int | None = Field(default=None, ge=1, le=65535)
    """Port of the judge; absent: the run's judges."""
    token_env: str | None = None
    """Environment variable that holds the judges' bearer token; absent: the run's token, for the run's judges."""

    @property
    def url(self) -> str | None:
        """URL of the judge that these keys name; None: the run's judges.

        Raises:
            ConfigError: the address is malformed, or only half of it is set.
        """
        if self.host_addr is None and self.host_port is None:
            return None
        if self.host_addr is None or self.host_port is None:
            raise ConfigError("only one of `host_addr` and `host_port` is set; set both, or neither")
        host = f"[{self.host_addr}]" if ":" in self.host_addr else self.host_addr
        try:
            return judge_url(f"{host}:{self.host_port}")
        except ValueError as error:
            raise ConfigError(f"`host_addr` {error}") from error

    def check_address(self, judge: JudgeSection, *, key: str) -> None:
        """Refuse an address that is wrong, or contradicts the run's judges; `key` is the config key of these keys.

        Raises:
            ConfigError: names the key.
        """
        try:
            url = self.url
        except ConfigError as error:
            raise ConfigError(f"`{key}`: {error}") from error
        if url is not None and judge.hosts and set(judge.hosts) != {url}:
            raise ConfigError(
                f"`{key}` names the judge {url}, but `judge.hosts` names {', '.join(judge.hosts)}; leave one of them out, or "
                "make them equal"
            )

    def address(self, of_run: JudgeAddress | None = None, *, owner: str) -> JudgeAddress:
        """Return the judges that these keys name, else the run's.

        Args:
            of_run: the run's judges.
            owner: start of the error message.

        Raises:
            ConfigError: there is no address, it is malformed, or the token's variable is not set.
        """
        if self.url is not None:
            urls = (self.url,)
        elif of_run is not None:
            urls = of_run.urls
        else:
            raise ConfigError(f"{owner}: `host_addr` and `host_port` are not set, and the run has no judge. Set both")
        is_of_run = of_run is not None and set(urls) == set(of_run.urls)
        token = of_run.token if of_run is not None and is_of_run else None
        return JudgeAddress(urls=urls, token=bearer_token(self.token_env, key=f"{owner}: `token_env`") or token)


class JudgeConnection(JudgeKeys):
    """Connection to the judges: address, and batches of submissions."""

    request_processor_concurrency: int = Field(default=_SHORT_FORM["concurrency"].default, ge=1)
    """Requests in flight at once; nearly done ones are not counted."""
    request_processor_batch_size: int = Field(default=_SHORT_FORM["batch_size"].default, ge=1, le=4096)
    """Most submissions in one request."""
    request_processor_batch_timeout_seconds: float = Field(default=_SHORT_FORM["batch_timeout_seconds"].default, gt=0)
    """Wall clock of one request."""

    def client(self, of_run: JudgeAddress | None = None, *, owner: str) -> JudgeClient:
        """Return a client of the judges of `address`; it is not started yet."""
        judges = self.address(of_run, owner=owner)
        return JudgeClient(
            judges.urls,
            token=judges.token,
            concurrency=self.request_processor_concurrency,
            batch_size=self.request_processor_batch_size,
            batch_timeout_s=self.request_processor_batch_timeout_seconds,
        )
