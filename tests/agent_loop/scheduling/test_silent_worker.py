"""A worker whose interpreter a tool has taken for good, as a real process."""

from pathlib import Path

import pytest

from agentrl.agent_loop.scheduling import worker_pool
from agentrl.agent_loop.scheduling.worker_pool import LoopWorkers
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.errors import WorkerDiedError
from tests.cluster.workers import HangingWorker

pytestmark = [pytest.mark.ray, pytest.mark.timeout(120)]


@pytest.mark.slow
@pytest.mark.parametrize("hangs_in", ["match", "stop"])
async def test_a_hanging_worker_is_started_again_and_its_calls_end(
    hangs_in: str, local_ray: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(worker_pool, "_ASK_EVERY_S", 0.5)
    monkeypatch.setattr(worker_pool, "_SILENT_S", 3.0)

    async def nothing_to_clean_up(worker: WorkerHandle) -> None: ...

    [worker] = spawn(
        HangingWorker, ResourcePool(num_processes=1, num_cpus=0.5), {}, "hanging", max_concurrency=8, restart=True
    )
    first_pid = await worker.start()
    workers = LoopWorkers([worker], clean_up=nothing_to_clean_up, max_wait_s=60)
    try:
        assert await workers.next() is worker
        with pytest.raises(WorkerDiedError):
            await getattr(worker, hangs_in)()
        assert await workers.next() is worker, "once it is back"
        assert await worker.start() != first_pid
    finally:
        await workers.aclose()
        worker.kill()
