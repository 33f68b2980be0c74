"""A server of the gateway's protocols without sessions: it answers from a script, and keeps the bodies that it got."""

import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from aiohttp import web

from agentrl.agent_loop.gateway.protocols import (
    anthropic_messages,
    openai_chat,
    openai_completions,
    openai_responses,
)
from agentrl.agent_loop.gateway.protocols.base import AgentCall, AgentReply, RequestError
from agentrl.types import FinishReason, ToolCall

PROTOCOLS: dict[str, ModuleType] = {
    "/v1/chat/completions": openai_chat,
    "/v1/responses": openai_responses,
    "/v1/completions": openai_completions,
    "/v1/messages": anthropic_messages,
}


def reply(
    text: str = "",
    *calls: ToolCall,
    thought: str = "",
    finish: FinishReason = FinishReason.STOP,
    call_id: str = "0-p0-0.0",
) -> AgentReply:
    """Return an answer with the counts 12 and 5."""
    return AgentReply(
        call_id=call_id,
        model="policy",
        created_s=1_790_000_000,
        text=text,
        thought=thought,
        calls=calls,
        finish=finish,
        num_prompt_tokens=12,
        num_completion_tokens=5,
    )


@dataclass(slots=True)
class Exchange:
    """The requests that a server got."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    calls: list[AgentCall] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


@contextlib.asynccontextmanager
async def scripted_gateway(script: Callable[[AgentCall], AgentReply]) -> AsyncIterator[Exchange]:
    """Serve what `script` answers."""
    exchange = Exchange()

    async def answer(request: web.Request) -> web.Response:
        protocol = PROTOCOLS[request.path]
        body = await request.json()
        exchange.bodies.append(body)
        exchange.headers.append(dict(request.headers))
        try:
            call = protocol.read(body)
        except RequestError as refused:
            return web.json_response(protocol.error(400, str(refused), field=refused.field), status=400)
        exchange.calls.append(call)
        if call.stream:
            return web.Response(text="".join(protocol.events(script(call), call)), content_type="text/event-stream")
        return web.json_response(protocol.write(script(call)))

    app = web.Application(client_max_size=2**24)
    app.add_routes([web.post(path, answer) for path in PROTOCOLS])
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        exchange.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield exchange
    finally:
        await runner.cleanup()
