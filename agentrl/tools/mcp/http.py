"""The streamable HTTP transport of the SDK, in which a failed request fails only its own call."""

import contextlib
from collections.abc import AsyncGenerator

import httpx2
import orjson
from mcp.client._transport import TransportStreams
from mcp.client.streamable_http import streamable_http_client

from agentrl.tools.mcp.stdio import MAX_ANSWER_BYTES

HTTP_FAILED = -32950
"""Code of the error that stands for a request that was not answered in JSON-RPC; a number that the protocol leaves free."""
_INFRASTRUCTURE = {401, 403, 408, 429}
"""Statuses below 500 that are the fault of no call."""
_LOST_SESSION = {400, 404}
"""Statuses of a server that does not know the session of a request, since it was restarted."""
_TIMEOUT = httpx2.Timeout(30.0, read=None)  # calls have time limits of their own
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=64)


@contextlib.asynccontextmanager
async def http_transport(url: str, *, headers: dict[str, str]) -> AsyncGenerator[TransportStreams]:
    """Yield the streams of a client; a failed request is answered with the error `HTTP_FAILED`."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=_TIMEOUT, transport=_AnsweringTransport(limits=_LIMITS)) as client,
        streamable_http_client(url, http_client=client, max_sse_event_size=MAX_ANSWER_BYTES) as streams,
    ):
        yield streams


class _AnsweringTransport(httpx2.AsyncHTTPTransport):
    """Turns a failed request into an answer; the SDK would end the client, and with it all calls in flight."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request."""
        try:
            response = await super().handle_async_request(request)
        except httpx2.TransportError as error:
            return _failure(503, f"{type(error).__name__}: {error}")
        if request.method != "POST" or response.status_code < 400 or _answers_call(request, response):
            return response
        await response.aclose()
        return _failure(response.status_code, f"HTTP status {response.status_code}")


def _answers_call(request: httpx2.Request, response: httpx2.Response) -> bool:
    """Return whether the error is about the call itself; others are of the server, or of what is before it."""
    status = response.status_code
    if status >= 500 or status in _INFRASTRUCTURE or (status in _LOST_SESSION and "mcp-session-id" in request.headers):
        return False
    return response.headers.get("content-type", "").lower().startswith("application/json")


def _failure(status: int, reason: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": HTTP_FAILED, "message": reason}}
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=orjson.dumps(error))
