"""A driver with an actor on one Ray node and engines on another, which then fails: prints what it saw as JSON."""

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from ray.cluster_utils import Cluster

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.handles import WorkerHandle, all_of, fetched
from agentrl.cluster.ray.network import own_node_id
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.weight_relay import WeightRelays
from agentrl.errors import ResultLostError
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher, read_tensors

NUM_ELEMENTS = 1_000_000


class Publisher:
    """An actor that only publishes weights."""

    def __init__(self, config: Any, role: str) -> None:
        self._publisher = SharedMemoryPublisher()

    async def publish(self, value: float) -> WeightSource:
        return self._publisher.publish([("a", torch.full((NUM_ELEMENTS,), value))])


class Engine:
    """An engine's worker that only loads weights."""

    def __init__(self, config: Any, role: str) -> None:
        self._addresses: list[str] = []
        self._sum = 0.0

    async def start(self) -> None: ...

    async def node_id(self) -> str:
        return own_node_id()

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        self._addresses.append(source.address)
        self._sum = dict(read_tensors(source))["a"].sum().item()

    async def describe(self) -> tuple[list[str], float]:
        return self._addresses, self._sum

    async def make(self) -> tuple[str, bytes]:
        return "a summary", bytes(1_000_000)

    async def length(self, value: bytes) -> int:
        return len(value)


async def play(cluster: Cluster, far_node: Any, nodes: dict[str, str]) -> dict[str, Any]:
    """Push two versions to two engines that are far and one that is near, then end their node."""
    near, far = nodes["127.0.0.2"], nodes["127.0.0.3"]
    place = ResourcePool(num_processes=1, num_cpus=0, node_id=near)
    [publisher] = spawn(Publisher, place, None, "publisher", max_concurrency=1)

    def launch(index: int) -> WorkerHandle:
        place = ResourcePool(num_processes=1, num_cpus=0, node_id=near if index == 2 else far)
        return spawn(Engine, place, None, "engine", max_concurrency=4, first_rank=index)[0]

    relays = WeightRelays()
    engines = EngineFleet(launch, num_engines=3, nearest=relays.nearest)
    await engines.start()

    for version in (1, 2):
        await engines.load(replace(await publisher.publish(float(version)), version=version, node=near))
    saw = {
        "engines": await all_of(engine.describe() for engine in engines),
        "published": (await publisher.publish(0.0)).address,
    }
    _, result = await engines[0].call_keeping_second("make")
    await engines.aclose()
    # It is not told that it goes.
    await asyncio.to_thread(cluster.remove_node, far_node, allow_graceful=False)
    return saw | {"fetched": await outcome(fetched(result)), "passed_on": await outcome(engines[2].length(result))}


async def outcome(call: Any) -> str:
    try:
        await call
    except ResultLostError:
        return "lost"
    return "there"


def main(temp_dir: Path) -> None:
    """Start two nodes, play, and stop them."""
    # Ray takes 127.0.0.1 for a mistake, and replaces it.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
    os.environ["RAY_TMPDIR"] = str(temp_dir)  # where `Cluster` notes its address; it does not make the usual folder
    head = {**node, "node_ip_address": "127.0.0.2", "temp_dir": str(temp_dir / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    far_node = cluster.add_node(**node, node_ip_address="127.0.0.3")
    ray.init(address=cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)
    try:
        nodes = {n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes()}
        print(json.dumps(asyncio.run(play(cluster, far_node, nodes))), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with guarded_run() as folder:
        main(folder)
