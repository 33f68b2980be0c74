"""A judge that fails on purpose, for tests of the client; imported by them as pytest puts this folder on the path."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from agentrl.judge.client import JudgeClient
from agentrl.types import Deadline
from code_judge_server.schemas import (
    Health,
    IsolationTier,
    Limits,
    Submission,
    SubmissionBatch,
    Verdict,
    VerdictStatus,
)


class FakeJudge:
    """Echoes each program as its stdout, unless `behaviour` does something else; records every batch."""

    def __init__(self, behaviour: "Behaviour | None" = None) -> None:
        self.behaviour = behaviour
        self.batches: list[list[str]] = []
        self.tokens: list[str | None] = []
        self.is_ready = True
        self.num_probes = 0
        self.was_probed = asyncio.Event()
        self.was_asked = asyncio.Event()
        self.was_dropped = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        batch = SubmissionBatch.model_validate_json(await request.read())
        self.batches.append([submission.code for submission in batch.submissions])
        self.tokens.append(request.headers.get("Authorization"))
        self.was_asked.set()
        try:
            return await (self.behaviour or echo)(self, batch, request)
        except asyncio.CancelledError:
            self.was_dropped.set()
            raise

    async def ready(self, request: web.Request) -> web.Response:
        self.num_probes += 1
        self.was_probed.set()
        return web.Response(status=200 if self.is_ready else 503)

    async def health(self, request: web.Request) -> web.Response:
        health = Health(
            version="1",
            isolation=IsolationTier.D,
            memory_enforcement="sampled",
            canaries=[],
            preloads=[],
            num_slots=2,
            num_running=0,
            queue_length=0,
            queue_capacity=100,
            estimated_wait_s=0.0,
            languages=["python"],
            max_batch_items=100,
            default_limits=Limits(),
            max_limits=Limits(),
        )
        return web.Response(text=health.model_dump_json(), content_type="application/json")


Behaviour = Callable[[FakeJudge, SubmissionBatch, web.Request], Awaitable[web.StreamResponse]]


def verdict(submission: Submission, status: VerdictStatus = VerdictStatus.ACCEPTED) -> Verdict:
    return Verdict.model_validate(
        {
            "id": submission.id,
            "status": status,
            "stdout": submission.code,
            "isolation": "D",
            "memory_enforcement": "sampled",
        }
    )


def reply(verdicts: list[Verdict]) -> web.Response:
    lines = "".join(verdict.model_dump_json() + "\n" for verdict in verdicts)
    return web.Response(text=lines, content_type="application/x-ndjson")


async def echo(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
    return reply([verdict(submission) for submission in batch.submissions])


@contextlib.asynccontextmanager
async def serving(*judges: FakeJudge, **settings: Any) -> AsyncIterator[JudgeClient]:
    async with contextlib.AsyncExitStack() as stack:
        urls: list[str] = []
        for judge in judges:
            app = web.Application()
            app.router.add_post("/v1/submissions/stream", judge.handle)
            app.router.add_get("/v1/ready", judge.ready)
            app.router.add_get("/v1/health", judge.health)
            server = TestServer(app)
            await server.start_server()
            stack.push_async_callback(server.close)
            urls.append(str(server.make_url("")))
        options: dict[str, Any] = {"token": None, "concurrency": 4, "batch_size": 8, "batch_timeout_s": 60.0}
        client = JudgeClient(urls, **(options | settings))
        await client.start()
        stack.push_async_callback(client.aclose)
        yield client


async def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`; fail when it does not come true, however slow the machine."""
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 (what is waited for is a count)
            await asyncio.sleep(0.01)


async def run_all(client: JudgeClient, num: int, seconds: float = 60.0) -> list[str]:
    verdicts = await asyncio.gather(*(client.run(f"p{i}", deadline=Deadline.after(seconds)) for i in range(num)))
    return [verdict.stdout for verdict in verdicts]


def expected(num: int) -> list[str]:
    return [f"p{i}" for i in range(num)]
