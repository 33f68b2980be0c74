"""A server of OpenAI's completions protocol as vLLM speaks it, scripted, on loopback; it fails as it is told to."""

import asyncio
import contextlib
import json
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from transformers import AutoTokenizer

POLICY = Path(__file__).resolve().parents[2] / "examples" / "arithmetic" / "policy"
GREEDY_TOKEN = 7
GREEDY_LOGPROB = -0.25

Body = dict[str, Any]
Event = dict[str, Any]


@dataclass(frozen=True)
class Pause:
    """Wait so long before the next event."""

    seconds: float


@dataclass(frozen=True)
class Cut:
    """Break the connection, as a process that is killed does."""


@dataclass(frozen=True)
class Status:
    """Answer with an error instead; only as the first event."""

    code: int
    text: str = "no"
    headers: dict[str, str] = field(default_factory=dict)


Script = Callable[[Body], Iterator[Event | Pause | Cut | Status]]


def sample(body: Body) -> tuple[list[int], str]:
    """Return the tokens and the finish reason: a function of prompt and seed, token 1 ends it where it is a stop token."""
    if body["temperature"] == 0 or body["top_k"] == 1:
        ids = [GREEDY_TOKEN] * body["max_tokens"]
    else:
        rng = random.Random(f"{body['seed']}/{body['prompt']}")
        ids = [rng.randrange(1, 20) for _ in range(body["max_tokens"])]
    for index, token in enumerate(ids):
        if token in body["stop_token_ids"]:
            return ids[: index + 1], "stop"
    return ids, "length"


def chunk(ids: list[int] | None, logprobs: list[float | None], finish_reason: str | None = None, **more: Any) -> Event:
    """Return one event of a reply."""
    choice = {"index": 0, "text": "x", "logprobs": {"token_logprobs": logprobs, "tokens": ["x"] * len(logprobs)}}
    choice |= {"finish_reason": finish_reason, "stop_reason": None} | ({} if ids is None else {"token_ids": ids})
    return {"object": "text_completion", "choices": [choice | more]}


def logprob(body: Body) -> float:
    """Return that of every token: after temperature and truncation, as `--logprobs-mode processed_logprobs` says."""
    return 0.0 if body["top_k"] == 1 else GREEDY_LOGPROB


def usual(body: Body, *, pause_s: float = 0.0) -> Iterator[Event | Pause | Cut | Status]:
    """Answer as vLLM does, token by token."""
    ids, reason = sample(body)
    for index, token in enumerate(ids):
        if pause_s:
            yield Pause(pause_s)
        first = {"prompt_token_ids": encoded(body["prompt"])} if index == 0 else {}
        yield chunk([token], [logprob(body)], reason if index + 1 == len(ids) else None, **first)
    usage = {"prompt_tokens": len(encoded(body["prompt"])), "prompt_tokens_details": {"cached_tokens": 1}}
    yield {"object": "text_completion", "choices": [], "usage": usage}


def encoded(prompt: str | list[int]) -> list[int]:
    return AutoTokenizer.from_pretrained(POLICY).encode(prompt) if isinstance(prompt, str) else prompt


class OpenAIServer:
    """One server; `script` is what it answers with, `bodies` what it was asked, `num_left` how often a client left early."""

    def __init__(self, script: Script = usual, *, token: str | None = None, models: list[Body] | None = None) -> None:
        self.script = script
        self.sampler: Callable[[Body], Awaitable[list[Event]]] | None = None
        """Samples instead of the script, if set."""
        self.token = token
        self.models = [{"id": "arithmetic", "object": "model"}] if models is None else models
        self._name = socket.socket()
        """Keeps the port for this server while it is stopped, and listens to nobody."""
        self._name.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._name.bind(("127.0.0.1", 0))
        self.port = self._name.getsockname()[1]
        self.bodies: list[Body] = []
        self.num_left = 0
        self.num_running = 0
        self.max_running = 0
        self._runner: web.AppRunner | None = None

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/models", self._list)
        app.router.add_post("/v1/completions", self._complete)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_port=True).start()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _list(self, request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": self.models})

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bodies.append(body)
        given = request.headers.get("Authorization")
        if self.token is not None and given != f"Bearer {self.token}":
            return web.json_response({"error": f"who is {given}?"}, status=401)
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        try:
            return await self._answer(request, await self.sampler(body) if self.sampler else self.script(body))
        except (asyncio.CancelledError, ConnectionError):
            self.num_left += 1
            raise
        finally:
            self.num_running -= 1

    async def _answer(self, request: web.Request, events: Iterable[Event | Pause | Cut | Status]) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        for event in events:
            match event:
                case Status():
                    return web.Response(status=event.code, text=event.text, headers=event.headers)
                case Pause():
                    await asyncio.sleep(event.seconds)
                case Cut():
                    assert request.transport is not None
                    request.transport.abort()
                    return reply
                case _:
                    if not reply.prepared:
                        await reply.prepare(request)
                    await reply.write(f"data: {json.dumps(event)}\n\n".encode())
        await reply.write(b"data: [DONE]\n\n")
        return reply


@contextlib.asynccontextmanager
async def served(*servers: OpenAIServer) -> AsyncIterator[None]:
    """Run `servers` for as long as the context lasts."""
    for server in servers:
        await server.start()
    try:
        yield
    finally:
        for server in servers:
            await server.stop()
