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
        is_json = response.headers.get("content-type", "").startswith("application/json")
        if request.method != "POST" or response.status_code < 400 or is_json:
            return response
        await response.aclose()
        return _failure(response.status_code, f"HTTP status {response.status_code}")


def _failure(status: int, reason: str) -> httpx2.Response:
    error = {"jsonrpc": "2.0", "id": None, "error": {"code": HTTP_FAILED, "message": reason}}
    return httpx2.Response(status, headers={"content-type": "application/json"}, content=orjson.dumps(error))
