"""The order of the fair queue; the reference is the promise of start-time fair queueing: equal slot time for all clients."""

import heapq
from collections import Counter

import pytest

from code_judge_server.queueing.fair_queue import FairQueue, RunTimes
from code_judge_server.queueing.queued_run import QueuedRun
from code_judge_server.schemas import Submission, TestCase


def a_run(client: str, name: str = "") -> QueuedRun:
    return QueuedRun(submission=Submission(id=f"{client}{name}", code=""), client=client, entered_at=0.0)


@pytest.fixture
def queue() -> FairQueue:
    return FairQueue(RunTimes())


def test_one_client_is_served_first_come_first_served(queue: FairQueue) -> None:
    runs = [a_run("a", str(number)) for number in range(10)]
    for run in runs:
        queue.push(run)
    assert [queue.pop() for _ in runs] == runs
    with pytest.raises(IndexError):
        queue.pop()


def test_a_run_that_comes_back_is_the_next_of_its_client(queue: FairQueue) -> None:
    runs = [a_run("a", str(number)) for number in range(3)]
    for run in runs:
        queue.push(run)
    assert queue.pop() is runs[0]
    queue.ended(runs[0], 0.1)
    queue.push(runs[0], first=True)
    assert [queue.pop() for _ in range(3)] == runs


def test_the_single_run_of_one_client_does_not_wait_for_the_thousand_of_another(queue: FairQueue) -> None:
    for number in range(1000):
        queue.push(a_run("flood", str(number)))
    for _ in range(2):
        queue.pop()
    single = a_run("single")
    queue.push(single)
    assert single in (queue.pop(), queue.pop())


def test_clients_get_the_same_slot_time_for_long_and_short_programs(queue: FairQueue) -> None:
    for number in range(1000):
        queue.push(a_run("slow", str(number)))
        queue.push(a_run("fast", str(number)))
    slot_time_s: Counter[str] = Counter()
    for _ in range(440):
        run = queue.pop()
        run_time_s = 1.0 if run.client == "slow" else 0.1
        slot_time_s[run.client] += run_time_s  # type: ignore[assignment]
        queue.ended(run, run_time_s)
    assert slot_time_s["slow"] == pytest.approx(slot_time_s["fast"], rel=0.1)


def test_time_that_a_client_did_not_use_is_not_saved_up(queue: FairQueue) -> None:
    kept_alive = a_run("late", "kept")
    queue.push(kept_alive)
    queue.pop()  # it runs all the time, so that its client is not forgotten
    for number in range(200):
        queue.push(a_run("busy", str(number)))
        queue.ended(queue.pop(), 1.0)
    for number in range(200):
        queue.push(a_run("busy", f"again {number}"))
        queue.push(a_run("late", str(number)))
    # It is behind by the last run of the other, which is as long as fifty of those that wait, and not by two hundred of them.
    first = Counter(queue.pop().client for _ in range(100))
    assert first["busy"] >= 20


def test_a_run_that_is_given_up_is_not_served(queue: FairQueue) -> None:
    runs = [a_run("a", str(number)) for number in range(3)]
    for run in runs:
        queue.push(run)
    queue.remove(runs[1])
    assert len(queue) == 2
    assert [queue.pop(), queue.pop()] == [runs[0], runs[2]]


def test_a_client_with_nothing_left_is_forgotten(queue: FairQueue) -> None:
    for number in range(50):
        run = a_run(str(number))
        queue.push(run)
        if number % 2:
            queue.remove(run)
    for _ in range(25):
        queue.ended(queue.pop(), 0.1)
    with pytest.raises(IndexError):
        queue.pop()  # looks at those that gave up, too
    assert not queue._clients


def test_work_ahead_is_zero_for_a_new_client_and_an_equal_share_for_a_late_one(queue: FairQueue) -> None:
    for number in range(100):
        queue.push(a_run("a", str(number)))
    for number in range(10):
        queue.push(a_run("b", str(number)))
    assert queue.work_ahead_s("new") == 0
    assert queue.work_ahead_s("b") == pytest.approx(20 * 0.02)
    assert queue.work_ahead_s("a") == pytest.approx(110 * 0.02)


@pytest.mark.slow
def test_a_client_that_sends_in_bursts_gets_only_its_share(queue: FairQueue) -> None:
    """Three slots: `steady` always has runs of 20 ms waiting, `bursts` sends three of 10 s whenever its last three are done."""
    slot_time_s = {"steady": 0.0, "bursts": 0.0}
    run_time_s = {"steady": 0.02, "bursts": 10.0}
    running: list[tuple[float, int, QueuedRun]] = []
    now, order = 0.0, 0
    for number in range(100):
        queue.push(a_run("steady", str(number)))
    while now < 2000:
        if "bursts" not in queue._clients or queue._clients["bursts"].is_idle:
            for number in range(3):
                queue.push(a_run("bursts", f"{now}-{number}"))
        while len(running) < 3:
            run = queue.pop()
            if run.client == "steady":
                queue.push(a_run("steady", f"{now}-{order}"))
            heapq.heappush(running, (now + run_time_s[run.client], order, run))
            order += 1
        now, _, run = heapq.heappop(running)
        slot_time_s[run.client] += run_time_s[run.client]
        queue.ended(run, run_time_s[run.client])
    assert slot_time_s["bursts"] == pytest.approx(slot_time_s["steady"], rel=0.1)


def test_a_client_that_used_more_than_others_is_forgotten_once_they_have_caught_up(queue: FairQueue) -> None:
    queue.push(a_run("once"))
    for number in range(500):
        queue.push(a_run("busy", str(number)))
    long = next(run for run in (queue.pop(), queue.pop()) if run.client == "once")
    queue.ended(long, 1.0)
    assert "once" in queue._clients
    for _ in range(300):
        queue.ended(queue.pop(), 0.01)
    assert "once" not in queue._clients


def test_usage_is_forgotten_when_no_client_is_left(queue: FairQueue) -> None:
    queue.push(a_run("a"))
    queue.ended(queue.pop(), 100.0)
    assert not queue._clients
    assert not queue._idle


def test_the_wait_of_a_client_that_used_more_is_estimated(queue: FairQueue) -> None:
    for number in range(1000):
        queue.push(a_run("busy", str(number)))
    queue.push(a_run("once"))
    once = next(run for run in (queue.pop(), queue.pop()) if run.client == "once")
    queue.ended(once, 5.0)
    assert queue.work_ahead_s("once") == pytest.approx(5.0, rel=0.1)


def test_a_client_that_always_has_one_waiting_pays_for_its_long_runs_at_once(queue: FairQueue) -> None:
    for number in range(1000):
        queue.push(a_run("fast", str(number)))
        queue.push(a_run("slow", str(number)))
    slow = next(run for run in (queue.pop(), queue.pop()) if run.client == "slow")
    queue.ended(slow, 10.0)
    assert {queue.pop().client for _ in range(100)} == {"fast"}


def test_debts_of_more_clients_than_anybody_can_have_are_not_all_kept(queue: FairQueue) -> None:
    queue.push(a_run("first"))
    first = queue.pop()
    for number in range(10_050):
        queue.push(a_run(str(number)))
        queue.ended(queue.pop(), 50.0 + number)
    assert len(queue._clients) <= 10_001
    queue.ended(first, 1.0)


def test_overcharged_slot_time_is_refunded_while_the_client_waits(queue: FairQueue) -> None:
    """Its runs are expected to take long and end at once, so it goes on before one that computes all the time."""
    for number in range(3):
        submission = Submission(id=f"short{number}", code="", tests=[TestCase()] * 1000)
        queue.push(QueuedRun(submission=submission, client="short", entered_at=0.0))
    for number in range(100):
        queue.push(a_run("busy", str(number)))
    served = []
    for _ in range(6):
        run = queue.pop()
        served.append(run.client)
        queue.ended(run, 0.01 if run.client == "short" else 1.0)
    assert served.count("short") == 3


def test_all_work_is_an_upper_bound_for_every_client(queue: FairQueue) -> None:
    runs = [a_run(client, str(number)) for client in "abc" for number in range(4)]
    for run in runs:
        queue.push(run)
    assert queue.all_work_s() == pytest.approx(12 * 0.02)
    assert max(map(queue.work_ahead_s, "abcd")) <= queue.all_work_s()
    queue.remove(runs[0])
    queue.pop()
    assert queue.all_work_s() == pytest.approx(10 * 0.02)
