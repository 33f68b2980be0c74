"""Helpers of HTTP clients: sockets that notice a lost peer, lines of a stream, `Retry-After`."""

import socket
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000),
)
"""Keep-alive that notices a lost machine after about ten seconds (the last option is in ms)."""


def watched_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket for `aiohttp.TCPConnector` that notices a lost peer after about ten seconds."""
    family, kind, protocol, *_ = address
    opened = socket.socket(family=family, type=kind, proto=protocol)
    for level, option, value in _SOCKET_OPTIONS:
        opened.setsockopt(level, option, value)
    return opened


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


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the header `Retry-After` in seconds; 0 without it or for a date."""
    try:
        return max(0.0, float(headers.get("Retry-After") or 0.0))
    except ValueError:
        return 0.0
