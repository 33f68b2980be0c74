"""Workers of extra roles whose processes die, on a real Ray."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.extra_workers import ExtraWorkerHandle
from agentrl.cluster.nodes import Nodes
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.errors import NotBuiltError
from tests.cluster.workers import DiesWhileBuilt

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]


def started(cls: type, config: dict[str, Any]) -> ExtraWorkerHandle:
    pool = ResourcePool(num_processes=1, num_cpus=0.1)
    [worker] = spawn(cls, pool, config, "painter", max_concurrency=8, restart=True)
    return ExtraWorkerHandle.of(worker)


async def test_a_class_whose_process_ends_whenever_it_is_built_is_refused_with_that_reason(
    local_ray: Path, tmp_path: Path
):
    worker = started(DiesWhileBuilt, {"deaths": 1000, "notes": str(tmp_path)})
    with pytest.raises(NotBuiltError, match=r"painter 0: its process ended 2 times while its class was being built"):
        async with asyncio.timeout(120):
            await Nodes(max_wait_s=1800).until_placed([worker], needs="CPU 0.1")
    worker.kill()


async def test_a_process_that_was_lost_once_while_its_class_was_built_is_waited_for(local_ray: Path, tmp_path: Path):
    worker = started(DiesWhileBuilt, {"deaths": 1, "notes": str(tmp_path)})
    await Nodes(max_wait_s=1800).until_placed([worker], needs="CPU 0.1")
    assert await worker.num_deaths() == 1
    worker.kill()
