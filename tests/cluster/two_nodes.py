"""A driver with two Ray nodes on this machine and a judge on each, which prints what it saw as JSON.

At the line `judge` it judges again, and at `lose` as well, after it has lost the node that is not its own; at an empty one, or
at the end of its stdin, it ends.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from agentrl.cluster.node_judges import node_judges
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.config.schema.judge import JudgeSection
from agentrl.judge.connection import JudgeAddress, JudgeConnection
from agentrl.types import Deadline

SECTION = JudgeSection(placement="per_node", min_isolation="D", num_slots=1)
NUM_PROGRAMS = 40


class Caller:
    """A worker that knows the judges, and their token, by its config."""

    def __init__(self, config: JudgeAddress, role: str) -> None:
        self._judges = config

    async def call(self) -> list[str]:
        client = JudgeConnection(request_processor_batch_size=2).client(self._judges, owner="caller")
        await client.start()
        try:
            runs = (client.run(f"print({number})", deadline=Deadline.after(60)) for number in range(NUM_PROGRAMS))
            return [verdict.stdout for verdict in await asyncio.gather(*runs)]
        finally:
            await client.aclose()


async def main(temp_dir: Path) -> None:
    # Ray takes 127.0.0.1 for a mistake, and replaces it.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
    head = {**node, "node_ip_address": "127.0.0.2", "temp_dir": str(temp_dir / "ray")}
    os.environ["RAY_TMPDIR"] = str(temp_dir)  # where `Cluster` notes its address; it does not make the usual folder
    cluster = Cluster(initialize_head=True, head_node_args=head)
    other = cluster.add_node(**node, node_ip_address="127.0.0.3")
    ray.init(address=cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)
    try:
        async with node_judges(SECTION) as judges:
            pool = ResourcePool(num_processes=1, node_id=ray.get_runtime_context().get_node_id())
            [caller] = spawn(Caller, pool, judges, "caller", max_concurrency=2)
            facts = {
                "urls": judges.urls,
                "token": judges.token,
                "outputs": await caller.call(),
                "folder": str(temp_dir),
            }
            print(json.dumps(facts), flush=True)
            while order := (await asyncio.to_thread(sys.stdin.readline)).strip():
                if order == "lose":
                    await asyncio.to_thread(cluster.remove_node, other, allow_graceful=False)
                print(json.dumps({"outputs": await caller.call()}), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with guarded_run() as folder:
        asyncio.run(main(folder))
