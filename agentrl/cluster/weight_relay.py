"""The way of new weights to engines on other nodes: over the network once per node, then through memory that its engines share.

A small worker on each node that has such engines holds the copy; one on the node of the actor gives out what the actor shares
there. The actor and the engines do as on a single machine.
"""

import asyncio
from dataclasses import dataclass, field

from agentrl.cluster.handles import WorkerHandle
from agentrl.cluster.network import own_address
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.errors import WorkerDiedError
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.remote import Served, WeightReader, WeightServer


class WeightRelay:
    """The worker: gives out what is shared on its node, or holds a copy of what is shared on another one."""

    def __init__(self, config: None, role: str) -> None:
        """Begin with neither."""
        self._server: WeightServer | None = None
        self._reader: WeightReader | None = None

    def serve(self, source: WeightSource) -> Served:
        """Give out `source`, which a process of this node shares, until the next call."""
        if self._server is None:
            self._server = WeightServer(own_address())
        return self._server.serve(source)

    def read(self, source: WeightSource, served: Served) -> WeightSource:
        """Take over `source` from another node; returns where the engines of this one find it, until the next call.

        Raises:
            EngineDeadError: see `WeightReader.read`.
        """
        if self._reader is None:
            self._reader = WeightReader()
        return self._reader.read(source, served)

    def num_bytes_received(self) -> int:
        """Return how much came over the network so far."""
        return 0 if self._reader is None else self._reader.num_bytes_received


@dataclass(slots=True)
class WeightRelays:
    """The relays of a run, started as they are needed; `begin` is called for every version, before `nearest`."""

    _home: str = ""
    _relays: dict[str, WorkerHandle] = field(default_factory=dict)
    _copies: dict[str, asyncio.Task[WeightSource]] = field(default_factory=dict)
    """The weights on their way to a node, or there."""

    def begin(self, *, at: str) -> None:
        """Note that a version is published on the node `at`; the copies of the last one are out of date."""
        self._copies.clear()
        if at != self._home:
            for relay in self._relays.values():
                relay.kill()  # it may hold a copy that nobody needs there any more
            self._relays.clear()
        self._home = at

    async def nearest(self, source: WeightSource, engine: WorkerHandle) -> WeightSource:
        """Return where `engine` finds `source`: there, or a copy on its own node.

        Raises:
            WorkerDiedError, EngineDeadError: its node, or the way there, is gone.
        """
        if source.transport is not Transport.SHARED_MEMORY:
            return source
        node = await engine.node_id()
        if node == self._home:
            return source
        copy = self._copies.get(node)
        if copy is None or _has_failed(copy):
            copy = self._copies[node] = asyncio.ensure_future(self._read(source, node))
        return await asyncio.shield(copy)

    async def relay(self, node: str) -> WorkerHandle:
        """Return the relay of a node, a new one if the last one died."""
        relay = self._relays.get(node)
        if relay is not None:
            try:
                await relay.num_bytes_received()
            except WorkerDiedError:
                relay = None
        if relay is None:
            place = ResourcePool(num_processes=1, num_cpus=0.0, node_id=node)
            [relay] = spawn(WeightRelay, place, None, "weight relay", max_concurrency=1)
            self._relays[node] = relay
        return relay

    async def _read(self, source: WeightSource, node: str) -> WeightSource:
        served = await (await self.relay(self._home)).serve(source)
        return await (await self.relay(node)).read(source, served)


def _has_failed(reading: asyncio.Task[WeightSource]) -> bool:
    return reading.done() and (reading.cancelled() or reading.exception() is not None)
