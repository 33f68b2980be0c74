"""Addresses of judges, servers and clusters: their checks, and the types of keys that hold one."""

import ipaddress
from typing import Annotated
from urllib.parse import SplitResult, urlsplit

from pydantic import AfterValidator


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
    parts = _split(url, url, example="http://10.0.0.1:8000/v1")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or parts.query or parts.fragment:
        raise ValueError(f"is {url!r}; it must be a URL such as `http://10.0.0.1:8000/v1`")
    return url


def judge_url(address: str) -> str:
    """Return the URL of a judge at `host:port` or a URL without a path.

    Raises:
        ValueError: `address` is neither; the message continues that of the key.
    """
    parts = _split(address, address if "://" in address else f"http://{address}", example="10.0.0.1:8088")
    has_rest = parts.path not in ("", "/") or parts.query or parts.fragment
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.port or has_rest:
        raise ValueError(f"is {address!r}; it must be `host:port` or a URL such as `http://10.0.0.1:8088`")
    return f"{parts.scheme}://{f'[{parts.hostname}]' if ':' in parts.hostname else parts.hostname}:{parts.port}"


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _split(address: str, url: str, *, example: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # refuses a port that is no number, or too large
    except ValueError as error:
        raise ValueError(f"is {address!r}: {error}; write it as `{example}`") from error
    if parts.username is not None or parts.password is not None:
        # Not quoted: a config error is logged.
        raise ValueError("holds a password; name the variable that holds the token in `token_env` instead")
    return parts


ClusterAddress = Annotated[str, AfterValidator(_cluster_address)]
ServerUrl = Annotated[str, AfterValidator(_server_url)]
JudgeUrl = Annotated[str, AfterValidator(judge_url)]
