"""A driver that joins a Ray that runs already: prints what it saw as JSON."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from agentrl.cluster.resource_pool import reserve
from agentrl.cluster.runtime import guarded_run, ray_runtime
from agentrl.cluster.spawn import spawn
from agentrl.config.cluster_schema import PoolSection
from agentrl.errors import ConfigError
from tests.cluster.workers import PlainWorker


async def look() -> dict[str, Any]:
    """Reserve a pool over both nodes, and ask for one that would need a third."""
    pool = await reserve("both", PoolSection(processes_per_node=[1, 1]), roles=["echo"])
    workers = [spawn(PlainWorker, place, {}, "echo", max_concurrency=1)[0] for place in pool.places("echo")]
    nodes = [await worker.node() for worker in workers]
    try:
        await reserve("three", PoolSection(processes_per_node=[1, 1, 1]), roles=["echo"])
    except ConfigError as error:
        return {"nodes": nodes, "refusal": str(error)}
    return {"nodes": nodes}


def main(temp_dir: Path) -> None:
    """Start two nodes, join them, look, and leave them."""
    # Ray takes 127.0.0.1 for a mistake, and replaces it.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
    os.environ["RAY_TMPDIR"] = str(temp_dir)  # where `Cluster` notes its address; it does not make the usual folder
    head = {**node, "node_ip_address": "127.0.0.2", "temp_dir": str(temp_dir / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**node, node_ip_address="127.0.0.3")
    user_folder = temp_dir / "user"
    user_folder.mkdir()
    with ray_runtime(
        address=cluster.address, num_cpus=99, temp_dir=temp_dir, user_folder=user_folder, keep_logs_in=temp_dir
    ):
        facts = asyncio.run(look()) | {"num_cpus": ray.cluster_resources()["CPU"]}
    print(json.dumps(facts), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    with guarded_run() as folder:
        main(folder)
