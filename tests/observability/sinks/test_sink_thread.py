import logging
import threading
import time

import pytest

from agentrl.observability.sinks.sink_thread import MAX_WAITING_ROWS, SinkThread
from tests.observability.sinks.recording import RecordingSink, SilentServer, SilentServerSink, wait_for


def finish(thread: SinkThread, timeout_s: float = 60.0) -> None:
    thread.end()
    thread.join(timeout_s)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_a_sink_gets_each_step_in_order_in_a_thread_of_its_own() -> None:
    sink = RecordingSink()
    thread = SinkThread("mine", lambda: sink)
    for step in range(100):
        thread.put(step, {"a/value": float(step)})
    finish(thread)
    assert sink.rows == [(step, {"a/value": float(step)}) for step in range(100)]
    assert len(sink.threads) == 1
    assert threading.get_ident() not in sink.threads
    assert (sink.is_closed, thread.num_lost) == (True, 0)


def test_a_run_without_steps_opens_no_sink() -> None:
    thread = SinkThread("mine", lambda: pytest.fail("opened"))
    finish(thread)


def test_a_server_that_never_answers_delays_no_step_and_not_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with SilentServer() as server:
        thread = SinkThread("mine", lambda: SilentServerSink(server))
        started = time.monotonic()
        for step in range(MAX_WAITING_ROWS // 2):
            thread.put(step, {"a/value": 1.0})
        all_put_s = time.monotonic() - started
        finish(thread, timeout_s=0.2)
        assert thread.num_lost == MAX_WAITING_ROWS // 2
    assert all_put_s < 30  # a call that waits for an answer never returns
    assert warnings_of(caplog) == [
        "sink mine: no answer in the last 0 s of the run; no step waits for it, and `metrics.jsonl` has them all"
    ]


def test_a_sink_that_hangs_is_reported_while_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()
    sink = RecordingSink(before_log=lambda step: goes_on.wait(60))
    thread = SinkThread("mine", lambda: sink, silence_s=0.0)
    thread.put(0, {})
    wait_for(lambda: bool(sink.threads))
    for step in (1, 2):
        thread.put(step, {})
    assert [warning.partition(";")[0] for warning in warnings_of(caplog)] == ["sink mine: no answer for 0 s"]
    goes_on.set()
    finish(thread)
    assert (sink.steps, thread.num_lost) == ([0, 1, 2], 0)


def test_steps_beyond_the_bound_of_the_queue_are_counted_with_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    goes_on = threading.Event()
    sink = RecordingSink(before_log=lambda step: goes_on.wait(60))
    thread = SinkThread("mine", lambda: sink)
    thread.put(0, {})
    wait_for(lambda: bool(sink.threads))
    for step in range(1, MAX_WAITING_ROWS + 6):
        thread.put(step, {})
    assert thread.num_lost == 5
    goes_on.set()
    finish(thread)
    assert sink.steps == list(range(MAX_WAITING_ROWS + 1))
    assert len(warnings_of(caplog)) == 1


def test_a_row_that_fails_is_lost_and_the_next_ones_are_not(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(step: int) -> None:
        if step in (1, 3):
            raise SystemExit("refused")  # libraries do that

    sink = RecordingSink(before_log=refuse)
    thread = SinkThread("mine", lambda: sink)
    for step in range(5):
        thread.put(step, {})
    finish(thread)
    assert (sink.steps, thread.num_lost) == ([0, 2, 4], 2)
    [warning] = warnings_of(caplog)
    assert warning.startswith("sink mine: ")
    assert "refused" in warning


def test_a_sink_that_cannot_be_opened_at_first_gets_the_steps_that_waited(caplog: pytest.LogCaptureFixture) -> None:
    sink, attempts = RecordingSink(), iter([OSError("connection refused"), OSError("connection refused")])

    def opened() -> RecordingSink:
        for error in attempts:
            raise error
        return sink

    thread = SinkThread("mine", opened, retry_s=0.01)
    for step in range(3):
        thread.put(step, {})
    wait_for(lambda: len(sink.rows) == 3)
    finish(thread)
    assert (sink.steps, thread.num_lost) == ([0, 1, 2], 0)
    assert ["connection refused" in warning for warning in warnings_of(caplog)] == [True]


def test_a_sink_that_is_never_opened_does_not_delay_the_end() -> None:
    def refuse() -> RecordingSink:
        raise OSError("connection refused")

    thread = SinkThread("mine", refuse, retry_s=3600)
    for step in range(3):
        thread.put(step, {})
    finish(thread)
    assert thread.num_lost == 3
