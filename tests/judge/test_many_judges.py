"""One client, several judges: who is asked, who is dropped, and who is taken back."""

import asyncio
import math
import time

from aiohttp import web
from fake_judge import FakeJudge, echo, expected, run_all, serving, until

from agentrl.types import Deadline
from code_judge_server.schemas import SubmissionBatch


async def draining(*_: object) -> web.Response:
    return web.Response(status=503)


async def full_for_a_minute(*_: object) -> web.Response:
    return web.Response(status=429, headers={"Retry-After": "60"})


async def take_long(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
    await asyncio.sleep(0.3)
    return await echo(judge, batch, request)


async def test_a_judge_that_drains_is_left_at_once_for_one_that_works() -> None:
    bad, good = FakeJudge(draining), FakeJudge()
    bad.is_ready = False
    async with serving(bad, good, concurrency=2) as client:
        assert await asyncio.wait_for(run_all(client, 40), 60) == expected(40)
        assert 1 <= len(bad.batches) <= 2
        assert client.take_stats().num_dropped_hosts == 1


async def test_a_dropped_judge_is_taken_back_when_it_answers_again() -> None:
    judge = FakeJudge(draining)
    judge.is_ready = False
    async with serving(judge) as client:
        call = asyncio.create_task(client.run("p", deadline=Deadline.after(60)))
        await asyncio.wait_for(judge.was_probed.wait(), 60)
        assert len(judge.batches) == 1, "it was sent work while it was down"
        judge.behaviour, judge.is_ready = None, True
        assert (await asyncio.wait_for(call, 60)).stdout == "p"


async def test_probes_of_a_dead_judge_become_rare() -> None:
    judge, other = FakeJudge(draining), FakeJudge()
    judge.is_ready = False
    async with serving(judge, other) as client:
        started_at = time.monotonic()
        while not judge.batches:
            await run_all(client, 4)
        await until(lambda: judge.num_probes >= 4)
        took_s = time.monotonic() - started_at
    # Pauses of at least half of 0.1, 0.2, 0.4, ... s.
    assert judge.num_probes <= 1 + math.log2(took_s / 0.05 + 1)


async def test_a_full_judge_is_passed_over_for_as_long_as_it_asks() -> None:
    full, other = FakeJudge(full_for_a_minute), FakeJudge()
    async with serving(full, other, concurrency=2) as client:
        for _ in range(3):
            assert await asyncio.wait_for(run_all(client, 16), 30) == expected(16)
    assert 1 <= len(full.batches) <= 2
    assert full.num_probes == 0


async def test_equal_judges_share_the_work() -> None:
    judges = [FakeJudge(take_long) for _ in range(3)]
    async with serving(*judges, concurrency=6, batch_size=4) as client:
        await run_all(client, 72)
    assert all(4 <= len(judge.batches) <= 8 for judge in judges), [len(judge.batches) for judge in judges]
