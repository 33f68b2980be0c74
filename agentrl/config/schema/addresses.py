"""Addresses of judges, servers and clusters: their checks, and the types of keys that hold one."""

from collections.abc import Sequence
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

from agentrl.errors import ConfigError


def _cluster_address(address: str) -> str:
    host, _, port = address.rpartition(":")
    good_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if address == "auto" or (good_port and host and not set(host) & set("/:@ ")):
        return address
    raise ValueError(
        f"is {address!r}, and must be `host:port`, such as `10.0.0.1:6379`, or `auto` on one of its nodes; absent, the run "
        "starts a Ray of its own"
    )


def _server_url(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ValueError(f"is {url!r}: {error}; write it as `http://10.0.0.1:8000/v1`") from error
    if parts.username is not None or parts.password is not None:
        # Not quoted: a config error is logged.
        raise ValueError(
            "holds a password; name the variable that holds the token in `rollout.openai.token_env` instead"
        )
    if parts.scheme not in ("http", "https") or not host or port == 0 or parts.query or parts.fragment:
        raise ValueError(f"is {url!r}; it must be a URL such as `http://10.0.0.1:8000/v1`")
    return url


ClusterAddress = Annotated[str, AfterValidator(_cluster_address)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]


def judge_urls(
    *, host_addr: str | None, host_port: int | None, hosts: Sequence[str] | None, key: str
) -> tuple[str, ...]:
    """Return the URL of every judge that the three keys name; empty if they name none.

    Args:
        host_addr: name or IP address of one judge.
        host_port: its port.
        hosts: `host:port` or URLs of one or several judges.
        key: prefix of the keys in messages, such as `judge.`.

    Raises:
        ConfigError: an address is malformed or incomplete, or the keys contradict each other.
    """
    listed = tuple(
        dict.fromkeys(_url(address, key=f"{key}hosts[{index}]") for index, address in enumerate(hosts or ()))
    )
    if host_port is not None and not 0 < host_port < 65536:
        raise ConfigError(
            f"`{key}host_port` is {host_port}; it must be the port of a running judge, from 1 to 65535. Leave out "
            "`host_addr` and `host_port` for a judge of the run's own on a free port"
        )
    if (host_addr is None) != (host_port is None):
        raise ConfigError(f"only one of `{key}host_addr` and `{key}host_port` is set; set both, or neither")
    if host_addr is None:
        return listed
    host = f"[{host_addr}]" if ":" in host_addr else host_addr
    single = (_url(f"{host}:{host_port}", key=f"{key}host_addr"),)
    if listed and listed != single:
        raise ConfigError(
            f"`{key}host_addr` and `{key}host_port` name {single[0]}, but `{key}hosts` names {', '.join(listed)}; "
            "keep one of them"
        )
    return single


def _url(address: str, *, key: str) -> str:
    try:
        parts = urlsplit(address if "://" in address else f"http://{address}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"`{key}` is {address!r}: {error}. Write `host:port` or `http://host:port`") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError(f"`{key}` holds a password; name the variable that holds the token in `token_env` instead")
    has_rest = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not host or not port or has_rest:
        raise ConfigError(f"`{key}` is {address!r}; it must be `host:port` or a URL such as `http://10.0.0.1:8088`")
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
