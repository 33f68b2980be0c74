"""The client of all benchmarks: it sends batches, counts refusals, and checks every verdict."""

import asyncio
import collections
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import aiohttp
import orjson

from benchmarks.judge.programs import Call

BATCH_SIZE = 64
_NUM_WRONG_SHOWN = 5
_JSON = {"Content-Type": "application/json"}
Verdict = dict[str, Any]


class WrongVerdictError(Exception):
    """A judge gave a wrong verdict, so its speed means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One call, its verdict, and its latency."""

    call: Call
    verdict: Verdict
    latency_s: float
    """Time from the call to its parsed verdict."""


@dataclass(slots=True)
class Client:
    """A connection to one judge, for use in `async with`."""

    url: str
    name: str = "benchmark"
    keep_alive_s: float = 15.0
    """Time for which an idle connection is kept."""
    num_refused: int = 0
    """Answers 429 and 503; each request was sent again after the time that the judge asked for."""
    _session: aiohttp.ClientSession = field(init=False)

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self.url,
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=self.keep_alive_s),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Judge-Client": self.name},
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def get(self, path: str) -> Any:
        """Return the JSON of an endpoint, such as `/v1/health`."""
        async with self._session.get(path, raise_for_status=True) as reply:
            return orjson.loads(await reply.read())

    async def judge_one(self, call: Call) -> Answer:
        """Judge one call in a request of its own."""
        started_at = time.perf_counter()
        verdict = await self._post("/v1/submissions", call.submission)
        return Answer(call=call, verdict=verdict, latency_s=time.perf_counter() - started_at)

    async def judge_batch(self, calls: Sequence[Call], *, deadline_s: float | None = None) -> list[Answer]:
        """Judge calls in one request; verdicts show which ones were not judged within `deadline_s`."""
        started_at = time.perf_counter()
        reply = await self._post("/v1/submissions/batch", _batch(calls, deadline_s))
        return self._answers(calls, reply["verdicts"], time.perf_counter() - started_at)

    async def judge_stream(self, calls: Sequence[Call]) -> list[Answer]:
        """Judge calls in one request with a streamed answer, one line each, in the order of completion."""
        started_at = time.perf_counter()
        verdicts = await self._post("/v1/submissions/stream", _batch(calls), parse=_lines)
        return self._answers(calls, verdicts, time.perf_counter() - started_at)

    async def judge_all(self, calls: Sequence[Call], *, in_flight: int | None = None) -> list[Answer]:
        """Judge calls in batches of `BATCH_SIZE`, `in_flight` batches at once (None: all)."""
        batches = [calls[start : start + BATCH_SIZE] for start in range(0, len(calls), BATCH_SIZE)]
        room = asyncio.Semaphore(in_flight or len(batches))

        async def judge(batch: Sequence[Call]) -> list[Answer]:
            async with room:
                return await self.judge_batch(batch)

        return [answer for answers in await asyncio.gather(*map(judge, batches)) for answer in answers]

    def _answers(self, calls: Sequence[Call], verdicts: Sequence[Verdict], latency_s: float) -> list[Answer]:
        by_id = {verdict["id"]: verdict for verdict in verdicts}
        if len(by_id) != len(verdicts) or by_id.keys() != {call.submission["id"] for call in calls}:
            raise WrongVerdictError(
                f"{self.url}: {len(calls)} calls got {len(verdicts)} verdicts, under {len(by_id)} ids: not exactly one each"
            )
        return [Answer(call=call, verdict=by_id[call.submission["id"]], latency_s=latency_s) for call in calls]

    async def _post(self, path: str, content: dict[str, Any], *, parse: Callable[[bytes], Any] = orjson.loads) -> Any:
        body = orjson.dumps(content)
        while True:
            async with self._session.post(path, data=body, headers=_JSON) as reply:
                text = await reply.read()
                if reply.status == 200:
                    return parse(text)
                if reply.status not in (429, 503):
                    raise aiohttp.ClientError(f"{self.url}{path}: status {reply.status}: {text[:300]!r}")
                self.num_refused += 1
                await asyncio.sleep(float(reply.headers.get("Retry-After", 1)))


def _batch(calls: Sequence[Call], deadline_s: float | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"submissions": [call.submission for call in calls]}
    return content if deadline_s is None else content | {"deadline_s": deadline_s}


def _lines(text: bytes) -> list[Verdict]:
    return [orjson.loads(line) for line in text.splitlines()]


def refuse_wrong(answers: Iterable[Answer]) -> None:
    """Check every verdict.

    Raises:
        WrongVerdictError: some are wrong; the message counts them, and shows the first.
    """
    wrong = [answer for answer in answers if not answer.call.is_right(answer.verdict)]
    if not wrong:
        return
    counts = collections.Counter((str(answer.call.kind), answer.verdict["status"]) for answer in wrong)
    shown = "\n\n".join(
        f"{answer.call.submission}\nexpected {answer.call.expected}\ngot {answer.verdict}"
        for answer in wrong[:_NUM_WRONG_SHOWN]
    )
    raise WrongVerdictError(f"{len(wrong)} wrong verdicts: {dict(counts)}\n{shown}")
