"""Ten thousand calls at once: each is answered once and with its own verdict, over a bounded number of connections."""

import asyncio
import random
import time
from collections import Counter

from aiohttp import web
from fake_judge import FakeJudge, expected, serving, verdict

from agentrl.judge.client import JudgeClient
from agentrl.types import Deadline
from code_judge_server.schemas import Submission, SubmissionBatch, Verdict

NUM_CALLS = 10_000
CONCURRENCY = 4
BATCH_SIZE = 64
MIN_CONNECTIONS, MAX_CONNECTIONS = 8 * CONCURRENCY, 9 * CONCURRENCY
"""Connections if every request waits for its last programs: eight per sender, and one more that each may have begun."""
MAX_CPU_S = 20.0
"""CPU time of client and fake judge together; about 1 s on an idle machine."""


class CountingJudge:
    """Holds every reply until all calls are made; then answers out of order, the last few of each batch late.

    Args:
        break_share: requests whose reply ends in the middle of a verdict.
    """

    def __init__(self, *, break_share: float = 0.0) -> None:
        self.all_calls_are_made = asyncio.Event()
        self.late_ones_are_due = asyncio.Event()
        self.connections_are_many = asyncio.Event()
        self.num_received: Counter[str] = Counter()
        self.id_of: dict[str, str] = {}
        self.connections: set[asyncio.Transport] = set()
        self.most_connections = 0
        self.num_broken = 0
        self._chance = random.Random(0)
        self._break_share = break_share

    async def __call__(self, _: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.connections.add(request.transport)
        num_open = sum(not connection.is_closing() for connection in self.connections)
        self.most_connections = max(self.most_connections, num_open)
        if num_open >= MIN_CONNECTIONS:
            self.connections_are_many.set()
        await self.all_calls_are_made.wait()
        return await self._answer(batch, request)

    async def _answer(self, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
        for submission in batch.submissions:
            self.num_received[submission.id] += 1
            assert self.id_of.setdefault(submission.code, submission.id) == submission.id
        shuffled = self._chance.sample(batch.submissions, len(batch.submissions))
        num_prompt = len(shuffled) - len(shuffled) // 16
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(lines(shuffled[:num_prompt]))
        await self.late_ones_are_due.wait()
        late = lines(shuffled[num_prompt:])
        if late and self._chance.random() < self._break_share:
            self.num_broken += 1
            await response.write(late[:20])
            assert request.transport is not None
            request.transport.close()
        else:
            await response.write(late)
        return response


def lines(submissions: list[Submission]) -> bytes:
    return "".join(verdict(submission).model_dump_json() + "\n" for submission in submissions).encode()


async def call_at_once(client: JudgeClient, judge: CountingJudge) -> list[Verdict]:
    """Return the verdicts in the order of the calls; none is given before all calls wait."""
    calls = [asyncio.create_task(client.run(code, deadline=Deadline.after(250))) for code in expected(NUM_CALLS)]
    await asyncio.sleep(0.1)
    assert not any(call.done() for call in calls)
    judge.all_calls_are_made.set()
    return await asyncio.gather(*calls)


def assert_each_has_its_own(verdicts: list[Verdict], judge: CountingJudge) -> None:
    assert [verdict.stdout for verdict in verdicts] == expected(NUM_CALLS)
    assert [verdict.id for verdict in verdicts] == [judge.id_of[verdict.stdout] for verdict in verdicts]
    assert len({verdict.id for verdict in verdicts}) == NUM_CALLS


async def test_ten_thousand_calls_in_flight_are_each_sent_once_and_answered_once() -> None:
    judge, started_s = CountingJudge(), time.process_time()
    judge.late_ones_are_due.set()
    async with serving(FakeJudge(judge), concurrency=CONCURRENCY, batch_size=BATCH_SIZE) as client:
        verdicts = await call_at_once(client, judge)
        stats = client.take_stats()
    assert_each_has_its_own(verdicts, judge)
    assert set(judge.num_received.values()) == {1}
    assert (stats.num_submissions, stats.num_retries, len(stats.round_trip_s)) == (NUM_CALLS, 0, NUM_CALLS)
    assert stats.num_requests < 2 * NUM_CALLS / BATCH_SIZE
    assert judge.most_connections <= MAX_CONNECTIONS
    assert time.process_time() - started_s < MAX_CPU_S


async def test_their_connections_are_bounded_although_every_batch_has_programs_that_never_end() -> None:
    judge = CountingJudge()
    async with serving(FakeJudge(judge), concurrency=CONCURRENCY, batch_size=BATCH_SIZE) as client:
        calling = asyncio.create_task(call_at_once(client, judge))
        await asyncio.wait_for(judge.connections_are_many.wait(), 100)
        await asyncio.sleep(0.3)
        assert judge.most_connections <= MAX_CONNECTIONS
        judge.late_ones_are_due.set()
        assert_each_has_its_own(await calling, judge)
    assert judge.most_connections <= MAX_CONNECTIONS


async def test_what_broken_replies_cut_off_is_answered_once_too() -> None:
    judge = CountingJudge(break_share=0.1)
    judge.late_ones_are_due.set()
    async with serving(FakeJudge(judge), concurrency=CONCURRENCY, batch_size=BATCH_SIZE) as client:
        verdicts = await call_at_once(client, judge)
        stats = client.take_stats()
    assert judge.num_broken > 0
    assert_each_has_its_own(verdicts, judge)
    assert sum(judge.num_received.values()) == NUM_CALLS + stats.num_retries
    assert stats.num_retries <= judge.num_broken * BATCH_SIZE // 16, "only what was cut off is sent again"
    assert judge.most_connections <= MAX_CONNECTIONS
