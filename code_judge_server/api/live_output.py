"""Live output of a program, as server-sent events; the last event is the verdict."""

import asyncio
import codecs
import contextlib
import json
from collections.abc import AsyncIterator, Mapping

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from code_judge_server.api.http_errors import DOCUMENTED_REFUSALS
from code_judge_server.api.http_guards import DirectJsonRoute, client_of
from code_judge_server.api.limits.sent_replies import after_each_piece
from code_judge_server.api.native_api import refuse_wrong_submissions
from code_judge_server.api.verdict_replies import json_line
from code_judge_server.judging.judge import Judge
from code_judge_server.languages import LanguageRules
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.sandbox.executor import OutputName, Spent
from code_judge_server.schemas import SubmissionRequest, Verdict

EVENT_STREAM = "text/event-stream"
_KEEP_ALIVE_S = 15.0
"""Proxies close connections that are silent for longer."""
_MAX_HELD_BYTES = 1 << 20
"""Bytes of output events kept for a slow reader. Further output is left out of the events, but not of the verdict."""


class LiveRun:
    """One submission whose output goes to one client while it runs; its owner must `close` it."""

    def __init__(self, submission: SubmissionRequest, judge: Judge, queue: SubmissionQueue, *, client: str) -> None:
        self._submission = submission
        self._judge = judge
        self._decoders: dict[tuple[int, OutputName], codecs.IncrementalDecoder] = {}
        self._events: list[bytes] = []
        self._held_bytes = 0
        self._is_cut = False
        self._news = asyncio.Event()
        self._room = contextlib.ExitStack()
        self._task = asyncio.create_task(
            queue.run_work(submission, self._work, client=client, deadline_s=submission.deadline_s, room=self._room)
        )
        self._task.add_done_callback(lambda _: self._news.set())

    async def wait_until_queued(self) -> None:
        """Wait until the submission is in the queue, which may refuse it."""
        await asyncio.sleep(0)  # lets the queue accept or refuse it
        if self._task.done():
            self._task.result()

    async def events(self) -> AsyncIterator[bytes]:
        """Yield the events; the verdict is the last."""
        yield b": waiting\n\n"
        while not self._task.done() or self._events:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KEEP_ALIVE_S):
                    await self._news.wait()
            self._news.clear()
            events, self._events = self._events, []
            self._held_bytes, self._is_cut = 0, False
            yield b"".join(events) or b": running\n\n"
            if self._task.done():
                self._news.set()
        yield b"event: verdict\ndata: " + json_line(self._task.result()) + b"\n\n"

    def close(self) -> None:
        """Cancel the run if it has not ended, and release its verdict."""
        self._task.cancel()
        self._room.close()

    async def _work(self, queue_time_s: float, spent: Spent) -> Verdict:
        self._emit(_event("started", json.dumps({"queue_time_s": queue_time_s})))
        verdict = await self._judge.judge(
            self._submission, queue_time_s=queue_time_s, spent=spent, on_output=self._take_output
        )
        for test, name in self._decoders:  # outputs that ended within a character
            self._take_output(test, name, b"", final=True)
        return verdict

    def _take_output(self, test: int, name: OutputName, content: bytes, *, final: bool = False) -> None:
        key = (test, name)
        if key not in self._decoders:
            self._decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        text = self._decoders[key].decode(content, final)
        if not text:
            return
        event = _event(name, json.dumps({"test": test, "text": text}))
        if self._held_bytes + len(event) <= _MAX_HELD_BYTES:
            self._held_bytes += len(event)  # not of its text: a program may print one character at a time
            self._emit(event)
        elif not self._is_cut:
            self._is_cut = True
            self._emit(_event("output_left_out", json.dumps({"test": test})))

    def _emit(self, event: bytes) -> None:
        self._events.append(event)
        self._news.set()


def _event(name: str, data: str) -> bytes:
    return f"event: {name}\ndata: {data}\n\n".encode()


class _LiveReply(StreamingResponse):
    """Reply that sends the events of a run; it always closes the run, even if the client left before the first event."""

    def __init__(self, run: LiveRun) -> None:
        super().__init__(run.events(), media_type=EVENT_STREAM, headers={"cache-control": "no-store"})
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        with contextlib.closing(self._run):
            await super().__call__(scope, receive, after_each_piece(send))


class _EventStreamResponse(Response):
    """Media type of the reply, for the OpenAPI page."""

    media_type = EVENT_STREAM


def live_router(judge: Judge, queue: SubmissionQueue, languages: Mapping[str, LanguageRules]) -> APIRouter:
    """Return the route of live output."""
    router = APIRouter(prefix="/v1", route_class=DirectJsonRoute)
    described = {"description": "Events, the last of them the `Verdict`", "content": {EVENT_STREAM: {}}}

    @router.post(
        "/submissions/events",
        responses={200: described, **DOCUMENTED_REFUSALS},
        response_class=_EventStreamResponse,
        response_model=None,
    )
    async def judge_live(submission: SubmissionRequest, request: Request) -> Response:
        """Judge one submission and show its output while it runs, as server-sent events."""
        refuse_wrong_submissions([submission], languages, where="")
        run = LiveRun(submission, judge, queue, client=client_of(request.scope))
        try:
            await run.wait_until_queued()
        except BaseException:
            run.close()
            raise
        return _LiveReply(run)

    return router
