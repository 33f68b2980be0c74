"""The worker that holds a judge of a node is kept and ended, however its judge stops; in virtual time and without a cluster."""

import asyncio
from typing import Any

import pytest

from agentrl import clock
from agentrl.cluster.node_judges import _keep, _stop
from agentrl.errors import JudgeUnavailableError, WorkerDiedError, WorkerError
from agentrl.simulation.virtual_time import run_in_virtual_time


class Worker:
    """Stops after `after_s`, where it raises `error`, if there is one."""

    def __init__(self, *, after_s: float = 0.0, error: Exception | None = None) -> None:
        self.after_s, self.error = after_s, error
        self.killed_at = -1.0

    async def stop(self) -> None:
        await asyncio.sleep(self.after_s)
        if self.error is not None:
            raise self.error

    def kill(self) -> None:
        self.killed_at = clock.now()


def stopped(worker: Any) -> None:
    run_in_virtual_time(_stop(worker))


def test_a_worker_whose_judge_cannot_be_stopped_is_ended_all_the_same():
    worker = Worker(after_s=1.0, error=WorkerError("judge 0: no way"))
    with pytest.raises(WorkerError, match="no way"):
        stopped(worker)
    assert worker.killed_at == 1.0


def test_a_worker_that_has_died_has_nothing_left_to_stop():
    worker = Worker(error=WorkerDiedError("judge 0: its process died"))
    stopped(worker)
    assert worker.killed_at == 0.0


@pytest.mark.parametrize(("after_s", "killed_at"), [(6.0, 6.0), (60.0, 10.0)])
def test_a_judge_that_is_being_started_is_not_waited_for_and_one_that_stops_slowly_is(after_s: float, killed_at: float):
    worker = Worker(after_s=after_s)
    stopped(worker)
    assert worker.killed_at == pytest.approx(killed_at)


class MortalWorker:
    """Dies at second 10, is restarted without its judge at second 13, and cannot take the port at its first attempt."""

    def __init__(self) -> None:
        self.num_attempts = 0
        self.is_running = True

    async def start(self, port: int) -> str:
        assert port == 8088
        if 10 <= clock.now() < 13:
            self.is_running = False
            raise WorkerDiedError("judge 0: its process died")
        self.num_attempts += not self.is_running
        if self.num_attempts == 1:
            raise JudgeUnavailableError("judge 0: the port is taken")
        self.is_running = True
        return f"http://10.0.0.1:{port}"


def test_a_judge_whose_worker_was_restarted_is_started_at_its_port_until_it_runs(caplog: pytest.LogCaptureFixture):
    worker: Any = MortalWorker()

    async def watch() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60.0):
                await _keep(worker, "http://10.0.0.1:8088")

    run_in_virtual_time(watch())
    assert worker.is_running
    assert [record.message for record in caplog.records] == [
        "judge 0: its process died; restarting at http://10.0.0.1:8088, unless its node is gone",
    ]
