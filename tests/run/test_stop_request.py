import os
import signal

import pytest

from agentrl.run.stop_request import SignalledError, StopRequest


def receive(stop: StopRequest, *, num_signals: int) -> None:
    with stop.deferred():
        for number in range(1, num_signals + 1):
            os.kill(os.getpid(), signal.SIGTERM)
            assert number == 1, "the second signal was deferred"
            assert stop.requested


def test_a_signal_inside_is_raised_at_the_end_and_one_outside_immediately():
    with StopRequest() as stop:
        with pytest.raises(SignalledError):
            receive(stop, num_signals=1)
        with pytest.raises(SignalledError):
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_second_signal_inside_does_not_wait():
    with StopRequest() as stop, pytest.raises(SignalledError):
        receive(stop, num_signals=2)
