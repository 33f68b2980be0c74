"""One HTTP session to equal servers: streamed replies, failures by name, and lost machines noticed in ten seconds."""

import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import aiohttp

from agentrl.errors import ConfigError

_CONNECT_TIMEOUT_S = 5.0
_IDLE_CONNECTION_S = 4.0
"""Less than uvicorn's 5 s, so that this side closes an idle connection and no request is lost."""
_READ_OF_ERROR_BYTES = 4096
_QUOTED_CHARACTERS = 300
_MAX_RETRY_AFTER_S = 60.0
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)
"""Keep-alive that notices a lost machine after about ten seconds (the last option is in ms)."""


class ServerError(Exception):
    """A failed request; `status` is that of the HTTP reply, 0 without one."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class RefusedError(ServerError):
    """The server refuses this request; a retry is useless."""


class NotAnsweredError(ServerError):
    """A try without an answer, which may be repeated; often a `BrokenError` or `BusyError`."""


class BrokenError(NotAnsweredError):
    """No reply, half a reply, or one of an unhealthy server."""


class BusyError(NotAnsweredError):
    """The server is full and asks to retry after `retry_after_s` seconds."""

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


def bearer_token(variable: str | None, *, key: str) -> str | None:
    """Return the token in the environment variable that the config `key` names; ConfigError if it is not set."""
    token = os.environ.get(variable) if variable else None
    if variable and not token:
        raise ConfigError(
            f"{key}: the variable `{variable}` is not set in this process. Export the servers' token under that name"
        )
    return token


class ServerSession:
    """An HTTP session, used on the event loop that calls `start`."""

    def __init__(
        self, *, token: str | None, headers: Mapping[str, str] | None = None, busy_status: int | None = None
    ) -> None:
        """Take the bearer token, if the servers want one, and further headers of every request.

        `busy_status` is an HTTP status that means "full", as 429 does, if it comes with `Retry-After`.
        """
        self._token = token
        self._headers = dict(headers or {}) | ({"Authorization": f"Bearer {token}"} if token else {})
        self._busy_status = busy_status
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Open the session on the running event loop."""
        # Callers limit their requests themselves; aiohttp's limit of 100 connections would throttle silently.
        connector = aiohttp.TCPConnector(
            limit=0, limit_per_host=0, keepalive_timeout=_IDLE_CONNECTION_S, socket_factory=_watched_socket
        )
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers)

    async def aclose(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def reply(
        self, method: str, url: str, *, timeout_s: float | None, body: bytes | str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Yield a successful reply; others, and failures while it is read, are raised as `ServerError`s."""
        if self._session is None:
            raise RuntimeError("server session: not started; await `start()` on its event loop")
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        headers = {"Content-Type": "application/json"}
        request = self._session.request(method, url, data=body, headers=headers, timeout=timeout, allow_redirects=False)
        try:
            async with request as reply:
                if reply.status >= HTTPStatus.MULTIPLE_CHOICES:
                    content = await reply.content.read(_READ_OF_ERROR_BYTES)
                    raise self.failure(url, reply.status, content, retry_after_s=_retry_after_s(reply.headers))
                yield reply
        except (aiohttp.ClientError, OSError) as error:
            raise BrokenError(f"{url}: {str(error) or type(error).__name__}") from error

    def failure(self, url: str, status: int, content: bytes, *, retry_after_s: float = 0.0) -> Exception:
        """Return the exception for a reply with an error status."""
        message = f"{url}: HTTP {status}: {self.quote(content)}"
        if status == HTTPStatus.TOO_MANY_REQUESTS or (status == self._busy_status and retry_after_s > 0):
            return BusyError(message, retry_after_s=min(retry_after_s, _MAX_RETRY_AFTER_S))
        if status >= 500 or status == HTTPStatus.REQUEST_TIMEOUT:  # the body did not arrive completely
            return BrokenError(message, status=status)
        return RefusedError(message, status=status)

    def quote(self, content: bytes) -> str:
        """Return the beginning of a reply, for a message."""
        text = content.decode(errors="replace")
        # Some servers repeat the refused token; it is removed before the cut, which could leave half of it.
        return (text.replace(self._token, "***") if self._token else text)[:_QUOTED_CHARACTERS]


async def lines(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Yield the complete lines of `stream` as they come.

    The stream's own `readline` refuses lines longer than its buffer; a line with a program's output may be longer.
    """
    rest = bytearray()
    async for chunk in stream.iter_any():
        searched = len(rest)
        rest += chunk
        if (end := rest.rfind(b"\n", searched)) >= 0:
            complete, rest = bytes(rest[:end]), rest[end + 1 :]
            for line in complete.split(b"\n"):
                if line:
                    yield line


def _watched_socket(address: tuple[Any, ...]) -> socket.socket:
    family, kind, protocol, *_ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    for level, option, value in _SOCKET_OPTIONS:
        opened.setsockopt(level, option, value)
    return opened


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the header `Retry-After` in seconds; 0 without it or for a date."""
    try:
        return max(0.0, float(headers.get("Retry-After") or 0.0))
    except ValueError:
        return 0.0
