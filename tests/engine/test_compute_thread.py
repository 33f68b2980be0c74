import threading

import pytest

from agentrl.engine.compute_thread import ComputeThread
from agentrl.errors import ConfigError, EngineError


class CountingWork:
    """Sleeps until called; breaks when it is told to."""

    def __init__(self) -> None:
        self.num_ticks = 0
        self.ticked = threading.Event()
        self.breaks = False

    def tick(self) -> float | None:
        self.num_ticks += 1
        self.ticked.set()
        if self.breaks:
            raise ZeroDivisionError("a bug")
        return None


def started(work: CountingWork | None = None) -> ComputeThread:
    thread = ComputeThread()
    thread.work = work
    thread.start()
    return thread


def test_calls_run_on_the_thread_and_give_their_result() -> None:
    thread = started()
    assert thread.run(lambda: threading.current_thread().name).result(5) == "agentrl-engine"
    thread.close()


def test_an_error_on_purpose_goes_to_the_caller_and_the_thread_lives_on() -> None:
    thread = started()

    def refuse() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        thread.run(refuse).result(5)
    assert thread.run(lambda: 1).result(5) == 1
    thread.close()


def test_a_bug_fails_every_open_and_every_later_call_with_its_cause() -> None:
    work = CountingWork()
    thread = started(work)
    never_resolved = thread.submit(lambda future: None)
    work.breaks = True
    thread.run(lambda: None)
    with pytest.raises(EngineError, match="ZeroDivisionError: a bug") as raised:
        never_resolved.result(5)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
    with pytest.raises(EngineError, match="a bug"):
        thread.run(lambda: None)


def test_closing_fails_open_calls_and_ends_the_thread() -> None:
    thread = started()
    open_call = thread.submit(lambda future: None)
    thread.close()
    with pytest.raises(EngineError, match="closed"):
        open_call.result(5)
    assert "agentrl-engine" not in {t.name for t in threading.enumerate()}


def test_an_idle_thread_does_not_tick() -> None:
    work = CountingWork()
    thread = started(work)
    thread.run(lambda: None).result(5)
    settled = thread.run(lambda: work.num_ticks).result(5)
    assert not threading.Event().wait(0.2)
    assert work.num_ticks <= settled + 2
    thread.close()


def test_a_cancelled_call_wakes_the_thread() -> None:
    work = CountingWork()
    thread = started(work)
    future = thread.submit(lambda future: None)
    thread.run(lambda: None).result(5)
    assert not threading.Event().wait(0.1)  # everything up to here has ticked
    work.ticked.clear()
    future.cancel()
    assert work.ticked.wait(5)
    thread.close()
