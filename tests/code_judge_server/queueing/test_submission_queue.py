"""Admission, slots, deadlines and cancellation, on an executor that runs nothing."""

import asyncio
import gc
import time
from collections import Counter

import pytest
from judge_process import until
from scripted_executor import ScriptedExecutor, queue_on, settle, submissions

from code_judge_server.queueing.fair_queue import RunTimes
from code_judge_server.queueing.pending_batch import without_outputs
from code_judge_server.queueing.queue import DrainingError, QueueFullError
from code_judge_server.queueing.scheduler import JudgeFailedError
from code_judge_server.schemas import IsolationTier, Submission, TestCase, Verdict, VerdictStatus


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor()


async def test_a_flood_of_one_client_does_not_delay_the_single_submission_of_another(
    executor: ScriptedExecutor,
) -> None:
    queue = queue_on(executor)
    flood = queue.enqueue(submissions("hold", *(f"print {n}" for n in range(1000))), client="flood")
    single = queue.enqueue(submissions("print single"), client="other")
    await settle()
    executor.release("hold")
    assert [verdict.stdout for verdict in await single.all()] == ["print single"]
    assert executor.started.index("print single") <= 2
    assert len(await flood.all()) == 1001
    for batch in (flood, single):
        batch.close()
    assert queue.is_idle


def of_many_tests(code: str, number: int) -> list[Submission]:
    return [Submission(id=code, code=code, tests=[TestCase(stdin=str(index)) for index in range(number)])]


async def test_a_submission_of_many_test_cases_yields_to_another_client(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    many = queue.enqueue(of_many_tests("print many", 100), client="many")
    own = queue.enqueue(submissions("print own"), client="many")
    single = queue.enqueue(submissions("print single"), client="other")
    assert [verdict.stdout for verdict in await single.all()] == ["print single"]
    assert executor.started == ["print many", "print single"]
    (verdict,) = await many.all()
    assert (verdict.status, len(verdict.tests)) == (VerdictStatus.ACCEPTED, 100)
    assert executor.started[2:101] == ["print many"] * 99
    await own.all()
    for batch in (many, own, single):
        batch.close()
    assert queue.is_idle


async def test_at_most_as_many_submissions_yield_as_slots_exist(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    first, second = (queue.enqueue(of_many_tests(f"print {name}", 3), client=name) for name in "ab")
    await first.all()
    await second.all()
    assert executor.started == ["print a", *["print b"] * 3, *["print a"] * 2]


async def test_a_submission_cancelled_while_it_yields_leaves_nothing_behind(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    for number in range(3):
        many = queue.enqueue(of_many_tests(f"print {number}", 3), client="many")
        other = queue.enqueue(submissions(f"hold {number}"), client="other")
        await settle()
        assert executor.started[-2:] == [f"print {number}", f"hold {number}"]
        assert (queue.num_waiting, queue.num_running) == (1, 1)
        many.close()
        await settle()
        assert (queue.num_waiting, queue.num_running) == (0, 1)
        executor.release(f"hold {number}")
        await other.all()
        other.close()
        await settle()
        assert queue.is_idle
    assert len(executor.started) == 6


async def test_a_yielding_submission_is_cancelled_when_the_server_stops(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    started_at = time.monotonic()
    many = queue.enqueue(of_many_tests("print many", 3), client="many")
    other = queue.enqueue(submissions("hold"), client="other")
    await settle()
    queue.cancel_all()
    verdicts = [*await many.all(), *await other.all()]
    assert [verdict.status for verdict in verdicts] == [VerdictStatus.CANCELLED] * 2
    assert all(verdict.wall_time_s > 0 for verdict in verdicts)
    assert sum(verdict.wall_time_s for verdict in verdicts) <= time.monotonic() - started_at  # there is one slot
    await settle()
    assert (queue.num_waiting, queue.num_running) == (0, 0)
    for batch in (many, other):
        batch.close()
    assert queue.is_idle


async def test_45000_submissions_that_wait_cost_no_task_and_little_time(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    everything = submissions("hold", *(f"print {n}" for n in range(44_999)))
    started_at = time.process_time()
    batch = queue.enqueue(everything, client="a")
    await settle()
    assert len(asyncio.all_tasks()) < 5
    assert queue.num_waiting == 44_999
    assert time.process_time() - started_at < 10
    started_at = time.process_time()
    batch.close()
    await settle()
    assert (queue.num_waiting, queue.num_running, queue.is_idle) == (0, 0, True)
    assert time.process_time() - started_at < 5
    assert executor.killed == ["hold"]


async def test_a_queue_that_is_full_for_one_client_has_room_for_another(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, queue_capacity=100, max_batch_items=100)
    batches = [queue.enqueue(submissions("hold"), client="a")]
    batches += [queue.enqueue(submissions(f"print {n}"), client="a") for n in range(80)]
    with pytest.raises(QueueFullError) as refused:
        queue.enqueue(submissions("one more"), client="a")
    assert refused.value.retry_after_s >= 1
    batches.append(queue.enqueue(submissions("print"), client="b"))
    for batch in batches:
        batch.close()


async def test_a_request_that_is_refused_leaves_nothing_behind(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, queue_capacity=4, max_batch_items=4)
    batch = queue.enqueue(submissions("hold", "print 1", "print 2"), client="a")
    with pytest.raises(QueueFullError):
        queue.enqueue(submissions("hold", "print 3", "print 4", "print 5"), client="b")
    await settle()
    batch.close()
    await settle()
    assert executor.started == ["hold"]
    assert queue.is_idle


async def test_a_long_wait_by_the_run_times_seen_is_a_refusal(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, max_estimated_wait_s=1)
    first = queue.enqueue(submissions("hold", *(f"print {n}" for n in range(100))), client="a")
    assert queue.estimated_wait_s("a") == pytest.approx(2, rel=0.1)  # a fiftieth of a second each, before any was seen
    assert queue.estimated_wait_s("b") < 0.1
    with pytest.raises(QueueFullError, match="max_estimated_wait_s"):
        queue.enqueue(submissions("print"), client="a")
    executor.release("hold")
    await first.all()
    assert queue.estimated_wait_s("a") == 0
    second = queue.enqueue(submissions("hold again", *(f"print {n} again" for n in range(100))), client="a")
    assert queue.estimated_wait_s("a") < 1  # they take a millisecond, it has turned out
    first.close()
    second.close()


async def test_while_programs_sleep_others_take_the_spare_slots(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, num_slots=2, spare_slots=3)
    batch = queue.enqueue(submissions(*(f"hold {n}" for n in range(10))), client="a")
    await asyncio.sleep(0.2)
    assert len(executor.started) == 2
    executor.num_asleep = 2
    await until(lambda: len(executor.started) == 4)
    executor.num_asleep = 4
    await asyncio.sleep(0.2)
    assert len(executor.started) == 4  # two, and of three spare ones those that one client may have
    other = queue.enqueue(submissions("hold other"), client="b")
    await until(lambda: len(executor.started) == 5)
    executor.num_asleep = 0
    executor.release("hold 0")
    await asyncio.sleep(0.2)
    assert len(executor.started) == 5  # four are at work on two cores
    batch.close()
    other.close()


async def test_at_the_deadline_waiting_submissions_time_out_and_running_ones_are_killed(
    executor: ScriptedExecutor,
) -> None:
    queue = queue_on(executor)
    batch = queue.enqueue(submissions("hold", "print"), client="a", deadline_s=1)
    verdicts = await batch.all()
    assert [verdict.status for verdict in verdicts] == ["cancelled", "queue_timeout"]
    await settle()
    assert executor.killed == ["hold"]
    assert queue.is_idle
    batch.close()


@pytest.mark.parametrize("deadline_s", [1e-9, 1e308])
async def test_deadlines_may_have_any_size(executor: ScriptedExecutor, deadline_s: float) -> None:
    batch = queue_on(executor).enqueue(submissions("print"), client="a", deadline_s=deadline_s)
    assert len(await batch.all()) == 1
    batch.close()


async def test_submissions_without_room_may_wait_outside_the_queue(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, queue_capacity=3, max_batch_items=3)
    first = queue.enqueue(submissions("hold", "print 1", "print 2"), client="a")
    impatient = await queue.judge_all(submissions("x", "y", "z"), client="b", max_queue_time_s=0.05)
    assert [verdict.status for verdict in impatient] == ["queue_timeout"] * 3
    patient = asyncio.create_task(queue.judge_all(submissions("x", "y", "z"), client="b"))
    await settle()
    executor.release("hold")
    assert [verdict.status for verdict in await patient] == ["accepted"] * 3
    first.close()
    assert queue.is_idle


async def test_cancelling_the_call_kills_its_submissions(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    call = asyncio.create_task(queue.judge_all(submissions("hold", "print"), client="a"))
    await settle()
    call.cancel()
    await settle()
    assert executor.killed == ["hold"]
    assert queue.is_idle


async def test_a_bug_in_the_judge_is_an_error_and_not_a_request_without_an_answer(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    batch = queue.enqueue(submissions("bug", "print"), client="a")
    with pytest.raises(JudgeFailedError, match="bug"):
        await batch.all()
    batch.close()
    await settle()
    assert queue.is_idle


async def test_verdicts_come_in_the_order_in_which_they_are_ready(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, num_slots=3)
    batch = queue.enqueue(submissions("hold 0", "hold 1", "print"), client="a")
    assert [index for index, _ in await batch.next_finished()] == [2]
    executor.release("hold 1")
    assert [index for index, _ in await batch.next_finished()] == [1]
    executor.release("hold 0")
    assert [index for index, _ in await batch.next_finished()] == [0]
    assert await batch.next_finished() == []
    batch.close()


async def test_outputs_that_find_no_room_are_left_out_and_flagged(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, reply_memory_mb=1, max_reply_chars=400_000)
    codes = [f"print {n} {'x' * 300_000}" for n in range(5)]
    batch = queue.enqueue(submissions(*codes), client="a")
    verdicts = await batch.all()
    assert [verdict.status for verdict in verdicts] == ["accepted"] * 5
    kept = [len(verdict.stdout) for verdict in verdicts]
    assert kept[0] > 300_000
    assert kept[-1] == 0
    assert [verdict.stdout_truncated for verdict in verdicts] == [not size for size in kept]
    batch.close()
    repeated = queue.enqueue(submissions("print " + "y" * 300_000), client="a")
    assert not (await repeated.all())[0].stdout_truncated
    repeated.close()


async def test_files_that_find_no_room_are_left_out_and_flagged() -> None:
    verdict = Verdict(
        id="a", status=VerdictStatus.ACCEPTED, files={"x": b"y"}, isolation=IsolationTier.A, memory_enforcement="cgroup"
    )
    emptied = without_outputs(verdict)
    assert (emptied.files, emptied.files_truncated) == ({}, True)
    assert not without_outputs(verdict.model_copy(update={"files": {}})).files_truncated


async def test_a_draining_server_finishes_submissions_and_refuses_new_ones(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    batch = queue.enqueue(submissions("hold", "print"), client="a")
    queue.start_draining()
    with pytest.raises(DrainingError):
        queue.enqueue(submissions("late"), client="a")
    with pytest.raises(DrainingError):
        await queue.judge_all(submissions("late"), client="a")
    assert not queue.is_idle
    await settle()
    executor.release("hold")
    assert [verdict.status for verdict in await batch.all()] == ["accepted", "accepted"]
    assert queue.is_idle
    batch.close()


async def test_submissions_cancelled_at_the_end_are_answered(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, queue_capacity=2, max_batch_items=2)
    batch = queue.enqueue(submissions("hold", "print"), client="a")
    outside = asyncio.create_task(queue.judge_all(submissions("x", "y"), client="b"))
    await settle()
    queue.cancel_all()
    assert [verdict.status for verdict in await batch.all()] == ["cancelled", "queue_timeout"]
    assert [verdict.status for verdict in await outside] == ["queue_timeout"] * 2
    await settle()
    assert executor.killed == ["hold"]
    assert queue.is_idle
    batch.close()


async def test_outputs_that_are_left_out_are_not_kept_while_the_rest_is_judged(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor, reply_memory_mb=1, max_reply_chars=400_000)
    codes = [*(f"print {n} {'z' * 300_000}" for n in range(6)), "hold"]
    call = asyncio.create_task(queue.judge_all(submissions(*codes), client="a"))
    await until(lambda: executor.started[-1:] == ["hold"])
    await settle()
    verdicts = [item for item in gc.get_objects() if isinstance(item, Verdict)]
    assert sum(len(verdict.stdout) for verdict in verdicts) < 1024 * 1024
    executor.release("hold")
    assert [verdict.status for verdict in await call] == ["accepted"] * 7


class CountingRunTimes(RunTimes):
    num_asked = 0

    def backlog_s(self, num_units: Counter[str]) -> float:
        self.num_asked += 1
        return super().backlog_s(num_units)


async def test_the_cost_of_a_request_does_not_grow_with_the_number_of_clients(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    run_times = queue._scheduler._run_times = queue._scheduler._waiting._run_times = CountingRunTimes()
    batches = [queue.enqueue(submissions(f"hold {number}"), client=str(number)) for number in range(100)]
    run_times.num_asked = 0
    batches.append(queue.enqueue(submissions("hold again"), client="0"))
    assert run_times.num_asked < 10
    for batch in batches:
        batch.close()
