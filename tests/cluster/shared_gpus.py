"""A driver with GPUs that Ray is only told of: prints on which one each rank of each role of a pool is, as JSON."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import ray

from agentrl.cluster.placement.resource_pool import reserve
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.config.schema.cluster import PoolSection

NUM_RANKS, NUM_ROLES = (2, 4), (2, 3)


class Rank:
    """Knows its GPU."""

    def __init__(self, config: dict[str, Any], role: str) -> None: ...

    async def gpus(self) -> list[str]:
        return ray.get_runtime_context().get_accelerator_ids()["GPU"]

    async def visible(self) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")


async def gpus_of_ranks(num_ranks: int, num_roles: int) -> list[list[list[str]]]:
    """Return the GPUs of each rank of each role of one pool."""
    roles = [f"role {number}" for number in range(num_roles)]
    section = PoolSection(processes_per_node=[num_ranks], num_cpus=0.1, num_gpus=1)
    pool = await reserve("shared", section, roles=roles)
    ranks = [[spawn(Rank, place, {}, role, max_concurrency=1)[0] for place in pool.places[role]] for role in roles]
    gpus_by_role = [await asyncio.gather(*(rank.gpus() for rank in ranks_of_role)) for ranks_of_role in ranks]
    pool.release()
    return gpus_by_role


async def visible_gpus() -> list[str | None]:
    """Return which GPUs a process with one and a process without any sees."""
    workers = [spawn(Rank, ResourcePool(num_processes=1, num_gpus=n), {}, "r", max_concurrency=1)[0] for n in (1, 0)]
    return list(await asyncio.gather(*(worker.visible() for worker in workers)))


async def main() -> None:
    print(json.dumps({"visible": await visible_gpus()}), flush=True)
    cases = [(num_ranks, num_roles) for num_ranks in NUM_RANKS for num_roles in NUM_ROLES]
    print(json.dumps([await gpus_of_ranks(*case) for case in cases]), flush=True)


if __name__ == "__main__":
    with guarded_run() as folder:
        options: dict[str, Any] = {"_temp_dir": str(Path(folder) / "ray"), "_node_ip_address": "127.0.0.1"}
        ray.init("local", num_cpus=2, num_gpus=4, include_dashboard=False, log_to_driver=False, **options)
        try:
            asyncio.run(main())
        finally:
            ray.shutdown()
