"""The client against a judge of our own making, which fails on purpose; the real one is in `test_python_tool.py`."""

import asyncio
import random

import pytest
from aiohttp import web
from fake_judge import Behaviour, FakeJudge, echo, expected, reply, run_all, serving, verdict

from agentrl.errors import JudgeUnavailableError
from agentrl.judge.client import InvalidSubmissionError, JudgeClient
from agentrl.judge.stats import judge_waits
from agentrl.types import Deadline
from code_judge_server.schemas import SubmissionBatch, Verdict, VerdictStatus


async def test_a_submission_leaves_at_once_while_a_sender_is_idle() -> None:
    judge = FakeJudge()
    async with serving(judge) as client:
        await run_all(client, 1)
        assert judge.batches == [["p0"]]


async def test_submissions_that_arrive_while_all_senders_are_busy_leave_together() -> None:
    release = asyncio.Event()

    async def when_released(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        await release.wait()
        return await echo(judge, batch, request)

    judge = FakeJudge(when_released)
    async with serving(judge, concurrency=1, batch_size=8) as client:
        first = asyncio.create_task(client.run("first", deadline=Deadline.after(60)))
        await judge.was_asked.wait()
        rest = asyncio.create_task(run_all(client, 10))
        await asyncio.sleep(0.05)
        assert judge.batches == [["first"]]
        release.set()
        assert await rest == expected(10)
        await first
        assert judge.batches[1:] == [expected(8), ["p8", "p9"]]


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_submission_that_comes_just_as_a_sender_ends_is_sent_by_another(concurrency: int) -> None:
    async with serving(FakeJudge(), concurrency=concurrency) as client:
        for number in range(20):
            # In a task of its own, whose answer wakes this one at the moment at which the sender sees an empty queue.
            task = asyncio.create_task(client.run(f"{number}", deadline=Deadline.after(60)))
            assert (await task).stdout == f"{number}"


async def test_a_burst_is_spread_over_idle_senders() -> None:
    judge = FakeJudge()
    async with serving(judge, concurrency=4, batch_size=8) as client:
        await run_all(client, 8)
        assert sorted(len(batch) for batch in judge.batches) == [2, 2, 2, 2]


async def test_verdicts_are_matched_by_id_and_not_by_position() -> None:
    async def shuffled(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
        verdicts = [verdict(submission) for submission in batch.submissions]
        random.Random(0).shuffle(verdicts)
        return reply(verdicts)

    async with serving(FakeJudge(shuffled), concurrency=1, batch_size=64) as client:
        assert await run_all(client, 64) == expected(64)


async def drop(_: FakeJudge, __: SubmissionBatch, request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def die_in_the_middle(_: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write((verdict(batch.submissions[0]).model_dump_json() + '\n{"id": "').encode())
    assert request.transport is not None
    request.transport.close()
    return response


async def full(*_: object) -> web.Response:
    return web.Response(status=429, headers={"Retry-After": "0.05"}, text="the queue is full")


async def draining(*_: object) -> web.Response:
    return web.Response(status=503)


async def nonsense(*_: object) -> web.Response:
    return web.Response(text="<html>")


async def queue_timeout(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
    return reply([verdict(submission, VerdictStatus.QUEUE_TIMEOUT) for submission in batch.submissions])


async def leave_the_first_out(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
    return reply([verdict(submission) for submission in batch.submissions[1:]])


@pytest.mark.parametrize(
    "failure", [drop, die_in_the_middle, full, draining, nonsense, queue_timeout, leave_the_first_out]
)
async def test_under_random_failures_nothing_is_lost_duplicated_or_swapped(failure: Behaviour) -> None:
    chance = random.Random(1)

    async def sometimes(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
        return await (failure if chance.random() < 0.4 else echo)(judge, batch, request)

    async with serving(FakeJudge(sometimes)) as client:
        assert await run_all(client, 60) == expected(60)
        stats = client.take_stats()
        assert stats.num_submissions == 60
        assert stats.num_retries > 0
        assert stats.num_unavailable == 0
        assert len(stats.round_trip_s) == 60


async def test_who_listens_hears_what_the_calls_inside_waited_and_nobody_elses() -> None:
    async def queued(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
        return reply([verdict(s).model_copy(update={"queue_time_s": float(s.code[1:])}) for s in batch.submissions])

    async with serving(FakeJudge(queued)) as client:
        other = asyncio.create_task(client.run("p100", deadline=Deadline.after(60)))
        with judge_waits() as waits_s:
            inside = asyncio.create_task(client.run("p20", deadline=Deadline.after(60)))
        with judge_waits() as none_s:
            pass
        await client.run("p300", deadline=Deadline.after(60))
        await asyncio.gather(inside, other)
    assert none_s == []
    (wait_s,) = waits_s
    assert 20 <= wait_s < 100


async def test_only_what_was_not_judged_is_sent_again() -> None:
    async def odd_ones_wait(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        if len(judge.batches) > 1:
            return await echo(judge, batch, request)
        late = VerdictStatus.QUEUE_TIMEOUT
        return reply([verdict(s, late if i % 2 else VerdictStatus.ACCEPTED) for i, s in enumerate(batch.submissions)])

    judge = FakeJudge(odd_ones_wait)
    async with serving(judge, concurrency=1) as client:
        assert await run_all(client, 4) == expected(4)
        assert judge.batches == [expected(4), ["p1", "p3"]]


async def test_what_is_sent_again_keeps_its_id() -> None:
    ids: list[set[str]] = []

    async def break_once(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.StreamResponse:
        ids.append({submission.id for submission in batch.submissions})
        return await (die_in_the_middle if len(ids) == 1 else echo)(judge, batch, request)

    async with serving(FakeJudge(break_once), concurrency=1) as client:
        assert await run_all(client, 4) == expected(4)
    assert len(ids[0]) == 4
    assert ids[1] == ids[0] - {min(ids[0])}, "the first one had its verdict"


async def test_retry_after_is_honoured() -> None:
    async def full_once(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        if len(judge.batches) == 1:
            return web.Response(status=429, headers={"Retry-After": "1"})
        return await echo(judge, batch, request)

    async with serving(FakeJudge(full_once)) as client:
        await run_all(client, 1)
        assert client.take_stats().round_trip_s[0] >= 1.0


async def test_a_judge_that_stays_full_is_unavailable_at_the_deadline_and_says_why() -> None:
    async with serving(FakeJudge(full)) as client:
        with pytest.raises(JudgeUnavailableError, match=r"no verdict in \S+ s: .*HTTP 429: the queue is full"):
            await client.run("p", deadline=Deadline.after(2))
        assert client.take_stats().num_unavailable == 1


async def test_nobody_listening_is_unavailable() -> None:
    client = JudgeClient(["http://127.0.0.1:9"], token=None, concurrency=1, batch_size=1, batch_timeout_s=1.0)
    await client.start()
    with pytest.raises(JudgeUnavailableError, match=r"127\.0\.0\.1:9"):
        await client.run("p", deadline=Deadline.after(1))
    with pytest.raises(
        JudgeUnavailableError, match=r"does not answer.*python -m code_judge_server.*judge.placement=per_node"
    ):
        await client.check(timeout_s=1)
    await client.aclose()


async def test_one_judge_of_several_is_enough_to_go_on_and_the_others_are_left_alone() -> None:
    judge = FakeJudge()
    async with serving(judge) as serving_judges:
        urls = ["http://127.0.0.1:9", *serving_judges.urls]
        client = JudgeClient(urls, token=None, concurrency=2, batch_size=1, batch_timeout_s=60.0)
        await client.start()
        await client.require_one(timeout_s=0.5)
        assert await run_all(client, 8) == expected(8)
        stats = client.take_stats()
        assert (stats.num_dropped_hosts, stats.num_unavailable) == (1, 0)
        with pytest.raises(JudgeUnavailableError, match=r"does not answer"):
            await client.check(timeout_s=0.5)
        await client.aclose()
    await client.start()
    with pytest.raises(JudgeUnavailableError, match=r"does not answer.*127\.0\.0\.1:9"):
        await client.require_one(timeout_s=0.5)
    await client.aclose()


async def test_a_judge_that_refuses_the_token_is_not_gone_on_without() -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.Response(status=401, text="who are you?")

    judge, other = FakeJudge(), FakeJudge()
    other.health = refuse
    async with serving(judge, other, token="ours") as client:
        with pytest.raises(JudgeUnavailableError, match="token"):
            await client.require_one(timeout_s=5)


async def test_a_cancelled_caller_does_not_hurt_the_others() -> None:
    async def slow(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        await asyncio.sleep(0.2)
        return await echo(judge, batch, request)

    async with serving(FakeJudge(slow), concurrency=1) as client:
        calls = [asyncio.create_task(client.run(f"p{i}", deadline=Deadline.after(60))) for i in range(6)]
        await asyncio.sleep(0.05)
        calls[2].cancel()
        done = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(done[2], asyncio.CancelledError)
        assert [v.stdout for v in done if isinstance(v, Verdict)] == ["p0", "p1", "p3", "p4", "p5"]
        assert await run_all(client, 3) == expected(3)


async def never(*_: object) -> web.Response:
    await asyncio.sleep(60)
    raise AssertionError("nobody dropped the request")


async def test_the_request_is_dropped_when_its_last_caller_gives_up() -> None:
    judge = FakeJudge(never)
    async with serving(judge, concurrency=1) as client:
        calls = [asyncio.create_task(client.run(f"p{i}", deadline=Deadline.after(60))) for i in range(3)]
        await judge.was_asked.wait()
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        await asyncio.wait_for(judge.was_dropped.wait(), 30)
        judge.behaviour = None
        assert await run_all(client, 3) == expected(3)


async def test_one_refused_submission_does_not_take_its_batch_with_it() -> None:
    async def refuse_p3(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        if any(submission.code == "p3" for submission in batch.submissions):
            return web.Response(status=400, text="wrong")
        return await echo(judge, batch, request)

    async with serving(FakeJudge(refuse_p3), concurrency=1) as client:
        runs = (client.run(f"p{i}", deadline=Deadline.after(60)) for i in range(6))
        done = await asyncio.gather(*runs, return_exceptions=True)
        assert isinstance(done[3], JudgeUnavailableError)
        assert [v.stdout for v in done if isinstance(v, Verdict)] == ["p0", "p1", "p2", "p4", "p5"]


async def test_an_internal_error_of_the_judge_is_no_verdict() -> None:
    async def broken(_: FakeJudge, batch: SubmissionBatch, __: web.Request) -> web.Response:
        return reply([verdict(submission, VerdictStatus.INTERNAL_ERROR) for submission in batch.submissions])

    async with serving(FakeJudge(broken)) as client:
        with pytest.raises(JudgeUnavailableError, match="internal_error"):
            await client.run("p", deadline=Deadline.after(60))


async def test_a_refused_token_is_not_tried_again() -> None:
    async def locked(*_: object) -> web.Response:
        return web.Response(status=401, text="who are you?")

    judge = FakeJudge(locked)
    async with serving(judge, token="wrong") as client:
        with pytest.raises(JudgeUnavailableError, match="token_env"):
            await client.run("p", deadline=Deadline.after(60))
    assert judge.tokens == ["Bearer wrong"]


async def test_the_judge_is_told_how_long_the_caller_waits() -> None:
    deadlines_s: list[float | None] = []

    async def record(judge: FakeJudge, batch: SubmissionBatch, request: web.Request) -> web.Response:
        deadlines_s.append(batch.deadline_s)
        return await echo(judge, batch, request)

    async with serving(FakeJudge(record), batch_timeout_s=250) as client:
        await client.run("p", deadline=Deadline.after(200))
        await client.run("p", deadline=Deadline.after(1000))
    assert deadlines_s[0] is not None
    assert 140 < deadlines_s[0] <= 200
    assert deadlines_s[1] == 250


@pytest.mark.parametrize("code", ["print('\0')", "print('\ud800')"])
async def test_a_program_that_no_judge_takes_is_refused_before_it_is_sent(code: str) -> None:
    judge = FakeJudge()
    async with serving(judge) as client:
        with pytest.raises(InvalidSubmissionError):
            await client.run(code, deadline=Deadline.after(60))
    assert judge.batches == []


async def test_closing_the_client_fails_its_callers_at_once() -> None:
    async with serving(FakeJudge(never), concurrency=1, batch_size=1) as client:
        calls = [asyncio.create_task(client.run(f"p{i}", deadline=Deadline.after(60))) for i in range(3)]
        await asyncio.sleep(0.1)
        await client.aclose()
        done = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 30)
        assert all(isinstance(outcome, JudgeUnavailableError) for outcome in done)
