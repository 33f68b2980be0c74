"""A driver with an engine on a Ray node that drains: prints what it saw as JSON."""

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ray
from ray._private.worker import global_worker
from ray.cluster_utils import Cluster
from ray.core.generated import autoscaler_pb2

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.placement.node_drain import leaving_draining_nodes
from agentrl.cluster.ray.network import own_address
from agentrl.cluster.ray.runtime import guarded_run
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.weight_sync import WeightSync
from agentrl.cluster.workers.engine_calls import EngineHandle
from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.engine.base import EngineStats
from agentrl.weight_sync.base import Transport, WeightSource
from tests.fakes import idle_stats


class Engine:
    """An engine's worker with fixed answers."""

    def __init__(self, config: Any, role: str) -> None:
        self._version = 0

    async def start(self) -> None: ...

    async def load_weights(self, source: WeightSource, *, version: int) -> None:
        self._version = version

    async def take_peak_memory(self) -> float:
        return 0.0

    async def stats(self) -> EngineStats:
        return idle_stats()

    async def node_id(self) -> str:
        return ray.get_runtime_context().get_node_id()

    async def describe(self) -> tuple[str, int]:
        return own_address(), self._version


class Learner:
    """A learner without processes."""

    def __init__(self) -> None:
        self.groups: dict[str, Any] = {"actor": SimpleNamespace(ranks=[])}
        self.published: WeightSource | None = None

    async def publish(self, version: int, engines: Sequence[str]) -> WeightSource:
        transport = Transport.SHARED_MEMORY
        self.published = WeightSource(transport=transport, address="", size_bytes=0, tensors=(), version=version)
        return self.published

    async def sent(self) -> None: ...


class Dispatcher:
    """A dispatcher of engines without requests."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    def close(self, engine: int) -> None: ...

    def reopen(self, engine: int, *, kv_tokens: int) -> None:
        self.opened.set()

    async def emptied(self, engine: int) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error

    def recover(self) -> None: ...


def drain(node_id: str) -> None:
    """Do what a spot machine's notice does."""
    messages, driver = cast(Any, autoscaler_pb2), cast(Any, global_worker)
    reason = messages.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline_ms = int(1000 * (time.time() + 600))
    accepted, why = driver.gcs_client.drain_node(node_id, reason, "a test", deadline_ms)
    assert accepted, why


async def play(nodes: dict[str, str]) -> dict[str, Any]:
    """Drain the node of an engine."""
    place = ResourcePool(num_processes=1)

    def launch(_: int) -> EngineHandle:
        [engine] = spawn(Engine, place, {}, "engine", max_concurrency=4)
        return EngineHandle.of(engine)

    # The head has no room for the first process: it is filled.
    [filler] = spawn(Engine, ResourcePool(num_processes=1, node_id=nodes["127.0.0.2"]), {}, "filler", max_concurrency=1)
    await filler.start()
    dispatcher, engines = Dispatcher(), EngineFleet(launch, num_engines=1)
    await engines.start()
    engines.report_to(dispatcher)
    sync = WeightSync(RunConfig(model=ModelSection(path="")), cast(Any, Learner()), engines)
    await sync.push(version=7)
    before, _ = await engines[0].describe()
    filler.kill()
    leaving = leaving_draining_nodes(engines, patience_s=600)
    async with sync.serving_late_engines(), contextlib.aclosing(engines), leaving:
        drain(nodes["127.0.0.3"])
        await dispatcher.opened.wait()
        after, version = await engines[0].describe()
        return {"before": before, "after": after, "version": version, "deaths": engines.take_num_deaths()}


def main(temp_dir: Path) -> None:
    """Start two nodes, play, and stop them."""
    # Ray takes 127.0.0.1 for a mistake, and replaces it.
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 80_000_000}
    os.environ["RAY_TMPDIR"] = str(temp_dir)  # where `Cluster` notes its address; it does not make the usual folder
    head = {**node, "node_ip_address": "127.0.0.2", "temp_dir": str(temp_dir / "ray")}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**node, node_ip_address="127.0.0.3")
    ray.init(address=cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)
    try:
        print(json.dumps(asyncio.run(play({n["NodeManagerAddress"]: n["NodeID"] for n in ray.nodes()}))), flush=True)
    finally:
        ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    with guarded_run() as folder:
        main(folder)
