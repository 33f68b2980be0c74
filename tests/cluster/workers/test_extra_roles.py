"""Workers of extra roles whose processes die, on a real Ray."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.placement.nodes import Nodes, has_place
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.spawn import ResourcePool
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.workers import extra_roles
from agentrl.cluster.workers.extra_roles import ExtraRoles, num_restarts, spawn_extra_worker
from agentrl.errors import NotBuiltError, WorkerDiedError
from tests.cluster.workers import DiesWhileBuilt, ExitsWhileBuilt, Painter

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


def started(cls: type, config: dict[str, Any]) -> WorkerHandle:
    pool = ResourcePool(num_processes=1, num_cpus=0.1)
    return spawn_extra_worker(cls, pool, config, "painter", max_concurrency=8)


async def test_a_class_that_ends_its_process_itself_is_refused_at_once_with_its_words(local_ray: Path):
    worker = started(ExitsWhileBuilt, {})
    with pytest.raises(
        NotBuiltError, match=r"(?s)painter 0: it could not be built: .*SystemExit: no license for painting"
    ):
        async with asyncio.timeout(60):
            await worker.until_placed()
    worker.kill()


async def test_a_process_that_was_lost_once_while_its_class_was_built_is_waited_for(local_ray: Path, tmp_path: Path):
    worker = started(DiesWhileBuilt, {"deaths": 1, "notes": str(tmp_path)})
    await Nodes(max_wait_s=1800, history=RunHistory()).until_placed([worker], needs="CPU 0.1")
    assert await num_restarts(worker) == 1
    worker.kill()


def test_a_worker_has_a_place_while_its_class_is_being_built_and_none_without_room(local_ray: Path, tmp_path: Path):
    worker = started(DiesWhileBuilt, {"deaths": 0, "notes": str(tmp_path), "build_s": 600})
    elsewhere = ResourcePool(num_processes=1, num_cpus=1000)
    homeless = spawn_extra_worker(Painter, elsewhere, {}, "painter", max_concurrency=8)
    while not list(tmp_path.iterdir()):
        time.sleep(0.1)
    assert (has_place(worker), has_place(homeless)) == (True, False)
    worker.kill()
    homeless.kill()


async def until_back(worker: WorkerHandle) -> None:
    async with asyncio.timeout(100):
        while True:
            with contextlib.suppress(WorkerDiedError):
                return await worker.until_placed()
            await asyncio.sleep(0.1)


@pytest.mark.slow
async def test_a_worker_that_dies_is_started_again_and_its_deaths_are_counted(
    local_ray: Path, caplog: pytest.LogCaptureFixture
):
    worker = started(Painter, {})
    roles = ExtraRoles({"painter": [worker]}, RunHistory(num_extra_role_deaths=7))
    first = await worker.agentrl_process()
    assert await roles.metrics() == {"cluster/extra_role_deaths": 7.0}, "those of the stages before"
    with pytest.raises(WorkerDiedError):
        await worker.die()
    await until_back(worker)
    assert await worker.agentrl_process() != first
    assert await roles.metrics() == {"cluster/extra_role_deaths": 8.0}
    messages = [record.message for record in caplog.records if record.name == extra_roles.__name__]
    assert messages == ["painter 0: died and was restarted"]
    worker.kill()
