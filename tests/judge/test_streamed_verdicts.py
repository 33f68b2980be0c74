"""Verdicts come back one by one, as programs end."""

import asyncio

from aiohttp import web
from fake_judge import FakeJudge, expected, run_all, serving, verdict

from agentrl.types import Deadline
from code_judge_server.schemas import SubmissionBatch, Verdict


class SlowJudge:
    """Answers at once but for programs named `slow`, which wait until `release`; breaks each line into two writes."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.transports: set[object] = set()

    async def __call__(self, _: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
        self.transports.add(request.transport)
        response = web.StreamResponse()
        await response.prepare(request)
        for submission in sorted(batch.submissions, key=lambda item: item.code.startswith("slow")):
            if submission.code.startswith("slow"):
                await self.release.wait()
            line = verdict(submission).model_dump_json().encode() + b"\n"
            await response.write(line[:40])
            await asyncio.sleep(0.001)
            await response.write(line[40:])
        return response


async def test_a_fast_program_does_not_wait_for_the_slowest_of_its_batch() -> None:
    slow = SlowJudge()
    async with serving(FakeJudge(slow), concurrency=1, batch_size=8) as client:
        calls = [asyncio.create_task(client.run(code, deadline=Deadline.after(60))) for code in ("slow", *expected(7))]
        slow_one, *fast_ones = calls
        assert [verdict.stdout for verdict in await asyncio.gather(*fast_ones)] == expected(7)
        assert not slow_one.done()
        slow.release.set()
        assert (await slow_one).stdout == "slow"


async def test_a_sender_does_not_wait_for_the_last_few_of_its_batch() -> None:
    slow, judge = SlowJudge(), FakeJudge()
    judge.behaviour = slow
    async with serving(judge, concurrency=1, batch_size=8) as client:
        first = [
            asyncio.create_task(client.run(f"{'slow' * (i == 0)}{i}", deadline=Deadline.after(60))) for i in range(8)
        ]
        await judge.was_asked.wait()
        assert await run_all(client, 8) == expected(8)
        slow.release.set()
        await asyncio.gather(*first)


async def test_a_batch_that_was_judged_leaves_its_connection_to_the_next() -> None:
    slow = SlowJudge()
    async with serving(FakeJudge(slow), concurrency=1, batch_size=4) as client:
        for _ in range(5):
            await run_all(client, 4)
        assert len(slow.transports) == 1


async def test_a_line_longer_than_any_buffer_is_a_verdict_too() -> None:
    async def long(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
        lines = [verdict(item).model_copy(update={"stderr": "x" * 3_000_000}) for item in batch.submissions]
        return web.Response(text="\n".join(line.model_dump_json() for line in lines) + "\n\n")

    async with serving(FakeJudge(long)) as client:
        done: list[Verdict] = await asyncio.gather(*(client.run("p", deadline=Deadline.after(60)) for _ in range(3)))
        assert [len(item.stderr) for item in done] == [3_000_000] * 3
