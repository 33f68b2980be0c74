"""A driver that joins a Ray that runs already: prints what it saw as JSON."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from agentrl.cluster.placement.nodes import Nodes, living_nodes
from agentrl.cluster.placement.resource_pool import missing_resources, reserve
from agentrl.cluster.ray.runtime import guarded_run, ray_runtime
from agentrl.cluster.ray.spawn import spawn
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.spawn_roles import Places
from agentrl.config.schema.cluster import ClusterSection, PoolSection
from agentrl.config.schema.run import ModelSection, RolloutSection, RunConfig
from agentrl.errors import ConfigError
from tests.cluster.workers import PlainWorker

MODEL = ModelSection(path="")


async def look(leave: Callable[[], None], come_back: Callable[[], None]) -> dict[str, Any]:
    """Reserve a pool over both nodes, and ask for one that would need a third; then start again without one of them."""
    pool = await reserve("both", PoolSection(processes_per_node=[1, 1]), roles=["echo"])
    workers = [spawn(PlainWorker, place, {}, "echo", max_concurrency=1)[0] for place in pool.places["echo"]]
    nodes = [await worker.node() for worker in workers]
    pool.release()
    three = ClusterSection(pools={"three": PoolSection(processes_per_node=[1, 1, 1])})
    refusal = missing_resources(three, {}, total=[node.has for node in living_nodes().values()])
    return {"nodes": nodes, "refusal": refusal, "after_a_loss": await start_again(leave, come_back)}


async def start_again(leave: Callable[[], None], come_back: Callable[[], None]) -> dict[str, Any]:
    """Lose a node that a run needs before that run starts again."""
    cluster = ClusterSection(
        address="auto",
        pools={"policy": PoolSection(processes_per_node=[1, 1], num_cpus=0.4)},
        roles={"actor_rollout_ref": "policy"},
    )
    config = RunConfig(model=MODEL, cluster=cluster, rollout=RolloutSection(num_workers=1))
    nodes = Nodes(max_wait_s=600, history=RunHistory())
    leave()
    first = await refusal_of(Places.reserved(config, nodes, num_gpus=0.0))
    waiting = asyncio.create_task(Places.reserved(config, nodes, num_gpus=0.0, is_restart=True))
    await asyncio.sleep(1.0)
    waited = not waiting.done()
    come_back()
    places = await waiting
    pools = list(places.pools)
    places.close()
    return {"first": first, "waited": waited, "pools": pools}


async def refusal_of(starting: Awaitable[Places]) -> str:
    """Return why a run may not start."""
    try:
        await starting
    except ConfigError as error:
        return str(error)
    return ""


def main(temp_dir: Path) -> None:
    """Start two nodes, join them, look, and leave them."""
    # Ray takes 127.0.0.1 for a mistake, and replaces it.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
    os.environ["RAY_TMPDIR"] = str(temp_dir)  # where `Cluster` notes its address; it does not make the usual folder
    head = {**node, "node_ip_address": "127.0.0.2", "temp_dir": str(temp_dir / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    others = [cluster.add_node(**node, node_ip_address="127.0.0.3")]

    def leave() -> None:
        cluster.remove_node(others.pop())

    def come_back() -> None:
        others.append(cluster.add_node(**node, node_ip_address="127.0.0.3"))

    user_folder = temp_dir / "user"
    user_folder.mkdir()
    with ray_runtime(
        address=cluster.address, num_cpus=99, temp_dir=temp_dir, user_folder=user_folder, keep_logs_in=temp_dir
    ):
        facts = asyncio.run(look(leave, come_back)) | {"num_cpus": ray.cluster_resources()["CPU"]}
    print(json.dumps(facts), flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    with guarded_run() as folder:
        main(folder)
