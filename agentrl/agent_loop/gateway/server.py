"""The HTTP server of an agent-loop worker, on loopback, where agents call the policy.

An answer is sampled and stored first, and then sent; a streamed one is sent as events, with a comment every few seconds before.
"""

import asyncio
import contextlib
import hashlib
import json
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from agentrl.agent_loop.gateway.protocols import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply, Protocol, RequestError
from agentrl.agent_loop.gateway.session import SealedError, Session
from agentrl.errors import UnexplainedError
from agentrl.rewards.score import SCORE_KEY, read_score

PROTOCOLS: dict[str, Protocol] = {
    "chat/completions": openai_chat,
    "responses": openai_responses,
    "completions": openai_completions,
    "messages": anthropic_messages,
}
"""Protocols by their path below `/v1/`."""

_HEARTBEAT_S = 3.0
"""Pause between the comments of a streamed answer that is not there yet."""
_MAX_BODY_BYTES = 256 * 2**20
_NO_RETRY = {"x-should-retry": "false"}
"""Header by which the SDKs of OpenAI and Anthropic do not repeat a call that cannot succeed."""

_Handler = Callable[[web.Request, Session], Awaitable[web.StreamResponse]]


class GatewayServer:
    """Serves the sessions of one worker, each under a key of its own."""

    def __init__(self) -> None:
        """Serve nothing yet; `start` opens the port."""
        self._sessions: dict[str, Session] = {}
        self._runner: web.AppRunner | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen on a free port of the loopback interface."""
        app = web.Application(client_max_size=_MAX_BODY_BYTES)
        for prefix in ("/s/{key}", ""):
            for path, protocol in PROTOCOLS.items():
                app.router.add_post(f"{prefix}/v1/{path}", _answering(protocol, self._keyed))
            app.router.add_post(f"{prefix}/v1/messages/count_tokens", self._of_session(_count_tokens))
            app.router.add_get(f"{prefix}/v1/models", self._of_session(_models))
        for path, handler in (("reward", _reward), ("finish", _finish)):
            app.router.add_post(f"/s/{{key}}/{path}", self._of_session(handler))
        app.router.add_get("/s/{key}", self._of_session(_state))
        # A client that closes its connection cancels its handler, which aborts the engine's request.
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, backlog=4096)
        await site.start()
        self._runner, self._port = runner, runner.addresses[0][1]

    async def aclose(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    def open(self, session: Session) -> str:
        """Serve a session, and return its key, which no other session can guess."""
        key = secrets.token_urlsafe(18)
        self._sessions[key] = session
        return key

    def close(self, key: str) -> None:
        """Serve a session no more."""
        self._sessions.pop(key, None)

    def url(self, key: str) -> str:
        """Return the address of a session."""
        return f"http://127.0.0.1:{self._port}/s/{key}"

    def _keyed(self, request: web.Request) -> Session | None:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ")
        key = request.match_info.get("key") or request.headers.get("x-api-key") or bearer
        return self._sessions.get(key)

    def _of_session(self, handler: _Handler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handle(request: web.Request) -> web.StreamResponse:
            if (session := self._keyed(request)) is None:
                return _error(openai_chat, 401, "no such session: its episode has ended, or the key is another's")
            try:
                return await handler(request, session)
            except SealedError as error:
                return _error(openai_chat, 409, str(error))
            except (RequestError, UnexplainedError) as error:
                return _error(openai_chat, 400, str(error))

        return handle


def _answering(
    protocol: Protocol, find: Callable[[web.Request], Session | None]
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the handler of a protocol's calls."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if (session := find(request)) is None:
            return _error(protocol, 401, "no such session: its episode has ended, or the key is another's")
        body = await request.read()
        try:
            call = protocol.read(_json(body))
        except RequestError as error:
            return _error(protocol, 400, str(error), field=error.field)
        key = request.headers.get("Idempotency-Key", "")
        digest = hashlib.blake2b(body, digest_size=16).hexdigest() + request.path + key
        is_retry = request.headers.get("x-stainless-retry-count", "0") not in ("", "0")
        answer = session.answer(call, digest=digest, is_retry=is_retry)
        try:
            if not call.stream:
                return web.json_response(protocol.write(await answer))
            task = asyncio.create_task(answer)
            try:
                return await _stream(request, protocol, call, task)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait({task})
        except (SealedError, RequestError) as error:
            return _refusal(protocol, error)

    return handle


async def _stream(
    request: web.Request, protocol: Protocol, call: AgentCall, task: asyncio.Task[AgentReply]
) -> web.StreamResponse:
    """Send the events of an answer; a refusal within the first seconds still has a status of its own."""
    await asyncio.wait({task}, timeout=_HEARTBEAT_S)
    if task.done() and task.exception() is not None:
        await task
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    while not task.done():
        await response.write(b": the policy is writing\n\n")
        await asyncio.wait({task}, timeout=_HEARTBEAT_S)
    try:
        reply = await task
    except (SealedError, RequestError) as error:
        body = protocol.error(_status(error), str(error))
        await response.write(f"event: error\ndata: {json.dumps(body)}\n\n".encode())
    else:
        await response.write("".join(protocol.events(reply, call)).encode("utf-8", "replace"))
    with contextlib.suppress(ConnectionResetError):
        await response.write_eof()
    return response


async def _models(request: web.Request, session: Session) -> web.StreamResponse:
    entry = {"id": "policy", "object": "model", "created": int(time.time()), "owned_by": "agentrl"}
    return web.json_response({"object": "list", "data": [entry]})


async def _count_tokens(request: web.Request, session: Session) -> web.StreamResponse:
    call = anthropic_messages.read(_json(await request.read()))
    return web.json_response(anthropic_messages.token_count(await session.count_tokens(call)))


async def _reward(request: web.Request, session: Session) -> web.StreamResponse:
    body = _json(await request.read())
    parts = body.get("parts") or {}
    if not isinstance(parts, dict):
        raise RequestError("`parts`: expected an object of numbers")
    session.post_reward(read_score({**parts, SCORE_KEY: body.get("value")}, where="`value`"))
    return web.json_response(session.describe())


async def _finish(request: web.Request, session: Session) -> web.StreamResponse:
    session.seal()
    return web.json_response(session.describe())


async def _state(request: web.Request, session: Session) -> web.StreamResponse:
    return web.json_response(session.describe())


def _json(body: bytes) -> dict[str, Any]:
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise RequestError("the body is not a JSON object")
    return parsed


def _status(error: SealedError | RequestError) -> int:
    return 409 if isinstance(error, SealedError) else 400


def _refusal(protocol: Protocol, error: SealedError | RequestError) -> web.Response:
    field = error.field if isinstance(error, RequestError) else None
    return _error(protocol, _status(error), str(error), field=field)


def _error(protocol: Protocol, status: int, message: str, *, field: str | None = None) -> web.Response:
    return web.json_response(protocol.error(status, message, field=field), status=status, headers=_NO_RETRY)
