"""Replies with verdicts: one, a batch in order, or a stream in order of completion."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections import Counter

from fastapi import Response
from pydantic import TypeAdapter
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from code_judge_server.api.http_guards import client_of, disconnected
from code_judge_server.api.limits.sent_replies import after_each_piece
from code_judge_server.queueing.pending_batch import PendingBatch
from code_judge_server.schemas import Verdict, VerdictStatus

logger = logging.getLogger(__name__)

NDJSON = "application/x-ndjson"
_CHUNK_BYTES = 256 * 1024
"""Bytes of a large batch turned into JSON at once: other requests run in between, and memory stays bounded."""

_json_of = TypeAdapter(Verdict).dump_json
_LINE_ENDS = {end.encode(): f"\\u{ord(end):04x}".encode() for end in "\x85\u2028\u2029"}
"""Line separators besides control characters, which JSON escapes."""


def json_line(verdict: Verdict) -> bytes:
    """Return a verdict as one line of JSON, whatever the program printed."""
    content = _json_of(verdict)
    for end, escaped in _LINE_ENDS.items():
        content = content.replace(end, escaped)
    return content


class VerdictReply(Response, ABC):
    """Reply that sends the verdicts of a batch and always closes it; a client that disconnects cancels the rest.

    Subclasses write the body.
    """

    media_type = "application/json"

    def __init__(self, batch: PendingBatch) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._batch = batch
        self._statuses: Counter[VerdictStatus] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the reply as the verdicts come in."""
        started_at = time.perf_counter()
        watch = asyncio.ensure_future(disconnected(receive))
        watch.add_done_callback(self._on_disconnect)
        try:
            await self._write(after_each_piece(send))
        except ClientDisconnect:
            pass  # nobody reads the rest
        finally:
            self._batch.close()
            watch.cancel()
            self._log(scope, time.perf_counter() - started_at)

    def _on_disconnect(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            self._batch.fail(ClientDisconnect())

    @abstractmethod
    async def _write(self, send: Send) -> None:
        """Send the start of the reply and its body."""

    def _json(self, verdict: Verdict) -> bytes:
        self._statuses[verdict.status] += 1
        return _json_of(verdict)

    def _start(self, *headers: tuple[bytes, bytes]) -> Message:
        return {"type": "http.response.start", "status": 200, "headers": [*self.raw_headers, *headers]}

    def _log(self, scope: Scope, time_s: float) -> None:
        num_verdicts = self._statuses.total()
        logger.info(
            "%s: %d verdicts in %.3f s",
            scope["path"],
            num_verdicts,
            time_s,
            extra={
                "client": client_of(scope),
                "time_s": round(time_s, 4),
                "statuses": {str(status): number for status, number in self._statuses.items()},
            },
        )


class SingleReply(VerdictReply):
    """The verdict of a batch of one."""

    async def _write(self, send: Send) -> None:
        verdict = (await self._batch.all())[0]
        content = self._json(verdict)
        await send(self._start((b"content-length", str(len(content)).encode())))
        await send(_body(content))


class BatchReply(VerdictReply):
    """A `VerdictBatch`, in the order of the submissions."""

    async def _write(self, send: Send) -> None:
        verdicts = await self._batch.all()
        await send(self._start())
        chunk = bytearray(b'{"verdicts":[')
        separator = b""
        for verdict in verdicts:
            chunk += separator + self._json(verdict)
            separator = b","
            if len(chunk) > _CHUNK_BYTES:
                await send(_body(bytes(chunk), more=True))
                await asyncio.sleep(0)  # sending alone may not yield to the event loop
                chunk.clear()
        await send(_body(bytes(chunk) + b"]}"))


class StreamReply(VerdictReply):
    """One `Verdict` per line, each as soon as it is ready."""

    media_type = NDJSON

    async def _write(self, send: Send) -> None:
        await send(self._start())
        await send(_body(b"", more=True))  # tells the client at once that the batch is accepted
        while finished := await self._batch.next_finished():
            self._statuses.update(verdict.status for _, verdict in finished)
            await send(_body(b"".join(json_line(verdict) + b"\n" for _, verdict in finished), more=True))
        await send(_body(b""))


def _body(content: bytes, *, more: bool = False) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": more}
