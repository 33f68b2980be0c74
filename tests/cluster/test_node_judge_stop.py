"""The worker that holds a judge of a node is ended, however its judge stops; in virtual time and without a cluster."""

import asyncio
from typing import Any

import pytest

from agentrl import clock
from agentrl.cluster.node_judges import _stop
from agentrl.errors import WorkerDiedError, WorkerError
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
