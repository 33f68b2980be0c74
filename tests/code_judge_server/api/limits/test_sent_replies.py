"""Verdicts are held until the peer has read them: an unread reply counts in `reply_memory_mb` all the while."""

import asyncio
import json
from collections import deque
from contextlib import suppress

import pytest
from fastapi import FastAPI
from scripted_executor import ScriptedExecutor, queue_on, settle
from starlette.requests import ClientDisconnect
from starlette.types import Message

from code_judge_server.api.live_output import live_router
from code_judge_server.api.native_api import submission_router
from code_judge_server.compatible.code_judge_api import code_judge_router
from code_judge_server.compatible.sandbox_fusion_api import sandbox_fusion_router
from code_judge_server.judging.judge import create_judge
from code_judge_server.languages import offered_languages
from code_judge_server.schemas import IsolationTier
from code_judge_server.settings import Settings

PROGRAM = "print " + "x" * 100_000
SUBMISSION: dict[str, object] = {"id": "a", "code": PROGRAM}
REQUESTS: dict[str, dict[str, object]] = {
    "/v1/submissions": SUBMISSION,
    "/v1/submissions/batch": {"submissions": [SUBMISSION]},
    "/v1/submissions/stream": {"submissions": [SUBMISSION]},
    "/v1/submissions/events": SUBMISSION,
    "/run": {"type": "python", "solution": PROGRAM},
    "/run/long-batch": {"submissions": [{"type": "python", "solution": PROGRAM}]},
    "/run_code": {"code": PROGRAM, "language": "python"},
}
_BUFFER_BYTES = 65_536
"""Bytes that a server's socket accepts although nobody reads them."""


class Peer:
    """Sends one request, and reads the reply as `take` says; as with uvicorn, a large piece delays the next one."""

    def __init__(self, path: str, body: dict[str, object]) -> None:
        self.body = bytearray()
        self._request = deque([{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}])
        self._may_take = asyncio.Event()
        self._untaken = b""
        self.scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json")],
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 2),
        }

    def take(self) -> None:
        """Read everything that comes."""
        self._may_take.set()

    async def receive(self) -> Message:
        if self._request:
            return self._request.popleft()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("it never goes away")

    async def send(self, message: Message) -> None:
        if len(self._untaken) > _BUFFER_BYTES:
            await self._may_take.wait()
        self._untaken = message.get("body", b"")
        self.body += self._untaken


@pytest.mark.parametrize("path", REQUESTS)
async def test_an_unread_reply_counts_as_held(path: str) -> None:
    settings = Settings(num_slots=1, spare_slots=0, max_reply_chars=200_000)
    executor = ScriptedExecutor()
    queue = queue_on(executor, max_reply_chars=200_000)
    languages = offered_languages({})
    app = FastAPI()
    app.include_router(submission_router(settings, queue, languages))
    app.include_router(live_router(create_judge(settings, executor, languages), queue, languages))
    app.include_router(code_judge_router(settings, queue, languages))
    app.include_router(sandbox_fusion_router(settings, queue, languages, IsolationTier.D))
    peer = Peer(path, REQUESTS[path])
    reply = asyncio.create_task(app(peer.scope, peer.receive, peer.send))
    try:
        while PROGRAM.encode() not in peer.body:
            await asyncio.sleep(0)
            assert not reply.done() or not reply.exception()
        await settle()
        assert queue._reply_memory.used > len(PROGRAM)
        peer.take()
        await reply
        assert queue._reply_memory.used == 0
    finally:
        reply.cancel()
        with suppress(asyncio.CancelledError):
            await reply


async def test_verdicts_whose_reply_is_never_sent_are_not_held() -> None:
    settings = Settings(num_slots=1, spare_slots=0)
    queue = queue_on(ScriptedExecutor())
    app = FastAPI()
    app.include_router(code_judge_router(settings, queue, offered_languages({})))
    peer = Peer("/run", {"type": "python", "solution": "bug"})
    with pytest.raises(Exception, match="the judge failed"):
        await app(peer.scope, peer.receive, peer.send)
    assert queue._reply_memory.used == 0
    assert queue.is_idle


async def test_a_client_that_left_before_the_first_event_ends_its_run() -> None:
    settings, languages, executor = Settings(num_slots=1, spare_slots=0), offered_languages({}), ScriptedExecutor()
    queue = queue_on(executor)
    app = FastAPI()
    app.include_router(live_router(create_judge(settings, executor, languages), queue, languages))
    peer = Peer("/v1/submissions/events", {"id": "a", "code": "hold"})
    peer.scope["asgi"] = {"version": "3.0", "spec_version": "2.4"}

    async def refuse(message: Message) -> None:
        raise OSError(f"the client left before {message['type']}")

    with pytest.raises(ClientDisconnect):
        await app(peer.scope, peer.receive, refuse)
    await settle()
    assert queue.is_idle
