"""The same id and content from the same client is judged once."""

import pytest
from scripted_executor import ScriptedExecutor, queue_on, settle, submissions

from code_judge_server.queueing.idempotency import Idempotency, content_key
from code_judge_server.queueing.queue import SubmissionQueue
from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.schemas import IsolationTier, Submission, SubmissionRequest, Verdict, VerdictStatus


@pytest.fixture
def executor() -> ScriptedExecutor:
    return ScriptedExecutor()


async def verdict_of(queue: SubmissionQueue, submission: Submission, client: str = "a") -> Verdict:
    batch = queue.enqueue([submission], client=client)
    try:
        return (await batch.all())[0]
    finally:
        batch.close()


async def test_a_submission_in_flight_is_shared(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    first = queue.enqueue(submissions("hold", "print"), client="a")
    second = queue.enqueue(submissions("hold", "print"), client="a")
    await settle()
    executor.release("hold")
    assert await first.all() == await second.all()
    assert executor.started == ["hold", "print"]
    first.close()
    second.close()
    assert queue.is_idle


async def test_a_shared_run_is_killed_when_all_its_waiters_are_gone(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    batches = [queue.enqueue(submissions("hold"), client="a") for _ in range(3)]
    await settle()
    for batch in batches[:2]:
        batch.close()
        await settle()
        assert executor.killed == []
    batches[2].close()
    await settle()
    assert executor.killed == ["hold"]
    assert queue.is_idle


async def test_a_deadline_ends_the_wait_of_its_own_request_only(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    patient = queue.enqueue(submissions("hold"), client="a")
    hurried = queue.enqueue(submissions("hold"), client="a", deadline_s=0.5)
    assert (await hurried.all())[0].status == "cancelled"
    executor.release("hold")
    assert (await patient.all())[0].status == "accepted"
    for batch in (patient, hurried):
        batch.close()


async def test_a_cancelled_run_is_run_anew(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    queue.enqueue(submissions("hold"), client="a").close()
    repeated = queue.enqueue(submissions("hold"), client="a")
    await settle()
    executor.release("hold")
    assert (await repeated.all())[0].status == "accepted"
    repeated.close()


async def test_a_finished_verdict_is_returned_again(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    submission = Submission(id="s", code="print")
    assert await verdict_of(queue, submission) == await verdict_of(queue, submission)
    assert executor.started == ["print"]


@pytest.mark.parametrize(
    ("other", "client"),
    [
        (Submission(id="s", code="print"), "b"),
        (Submission(id="t", code="print"), "a"),
        (Submission(id="s", code="print more"), "a"),
        (Submission(id="s", code="print", stdin="x"), "a"),
        (Submission(id="s", code="print", expected_output="print"), "a"),
    ],
)
async def test_another_client_id_or_content_is_another_submission(
    executor: ScriptedExecutor, other: Submission, client: str
) -> None:
    queue = queue_on(executor)
    await verdict_of(queue, Submission(id="s", code="print"))
    await verdict_of(queue, other, client)
    assert len(executor.started) == 2


def test_the_deadline_of_a_request_is_no_part_of_the_content() -> None:
    alone = SubmissionRequest(id="s", code="print", deadline_s=3)
    assert content_key("a", alone) == content_key("a", Submission(id="s", code="print"))


async def test_an_unjudged_submission_is_judged_when_it_is_sent_again(executor: ScriptedExecutor) -> None:
    queue = queue_on(executor)
    submission = Submission(id="s", code="break")
    for _ in range(2):
        assert (await verdict_of(queue, submission)).status == "internal_error"
    assert len(executor.started) == 2


def ended(memory: Idempotency, key: bytes, stdout: str) -> None:
    run = QueuedRun(submission=Submission(id="s", code=""), client="a", entered_at=0.0, key=key)
    memory.started(run)
    verdict = Verdict(
        id="s",
        status=VerdictStatus.ACCEPTED,
        stdout=stdout,
        isolation=IsolationTier.A,
        memory_enforcement="cgroup",
    )
    memory.ended(run, verdict)


def test_the_oldest_verdicts_are_dropped_beyond_the_byte_limit() -> None:
    memory = Idempotency(max_bytes=100_000, max_age_s=60)
    for number in range(10):
        ended(memory, bytes([number]), "x" * 20_000)
    kept = [number for number in range(10) if memory.verdict(bytes([number])) is not None]
    assert kept == [6, 7, 8, 9]
    ended(memory, b"large", "x" * 200_000)
    assert memory.verdict(b"large") is None
    assert memory.verdict(bytes([9])) is not None


def test_verdicts_are_forgotten_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    memory = Idempotency(max_bytes=100_000, max_age_s=60)
    ended(memory, b"old", "")
    now_s += 59
    assert memory.verdict(b"old") is not None
    now_s += 2
    assert memory.verdict(b"old") is None
