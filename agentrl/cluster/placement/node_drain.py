"""Moves engines off nodes that are about to leave, while the run goes on.

Ray calls such a node draining: a spot machine with its notice, `ray drain-node`, a cluster that shrinks. Ray starts nothing new
there and knows the deadline, but does not notify drivers: they poll, by the call that Ray's own trainers use.
"""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Set

import ray
from ray.exceptions import RayError

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.ray.handles import WorkerHandle
from agentrl.cluster.ray.polling import ask_ray, draining_deadlines_ms, watching
from agentrl.errors import AgentRLError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_ANSWER_TIMEOUT_S = 5.0
"""Limit for an engine to name its node; a late one is asked again at the next look."""
_MARGIN_S = 5.0
"""Seconds before the node's deadline at which its engine must be empty."""


def draining_nodes() -> dict[str, float]:
    """Ask Ray for the draining nodes; see `remaining_times_s`."""
    deadlines_ms = draining_deadlines_ms()
    if not deadlines_ms:
        return {}
    living = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return remaining_times_s(deadlines_ms, living, now_s=time.time())


def remaining_times_s(deadlines_ms: Mapping[str, int], living: Set[str], *, now_s: float) -> dict[str, float]:
    """Return the seconds until each draining node leaves, keyed by id.

    Args:
        deadlines_ms: deadlines since the epoch; 0, if Ray knows none, becomes infinity.
        living: all living nodes. If all of them drain there is nowhere to go, and the result is empty.
        now_s: current time since the epoch.
    """
    if not living - deadlines_ms.keys():
        return {}
    return {node: at_ms / 1000 - now_s if at_ms else math.inf for node, at_ms in deadlines_ms.items()}


@contextlib.asynccontextmanager
async def leaving_draining_nodes(
    engines: EngineFleet, *, patience_s: float, look: Callable[[], Mapping[str, float]] = draining_nodes
) -> AsyncIterator[None]:
    """Drain every engine whose node drains, as long as the context lasts.

    Args:
        engines: engines that answer `node_id` and may be started anywhere.
        patience_s: limit for the running requests of an engine, if its node stays longer.
        look: see `draining_nodes`.
    """
    async with watching(_watch(engines, patience_s, look), what="draining nodes"):
        yield


async def _watch(engines: EngineFleet, patience_s: float, look: Callable[[], Mapping[str, float]]) -> None:
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        try:
            remaining_s = await ask_ray(look)
        except RayError as error:
            logger.warning("draining nodes: no answer from Ray: %s", error)
            continue
        if remaining_s:
            places = await asyncio.gather(*map(_node_of, engines))
            for index, node in enumerate(places):
                if node is not None and node in remaining_s:
                    engines.drain(index, within_s=max(0.0, min(patience_s, remaining_s[node] - _MARGIN_S)))


async def _node_of(engine: WorkerHandle) -> str | None:
    try:
        async with asyncio.timeout(_ANSWER_TIMEOUT_S):
            return await engine.node_id()
    except (TimeoutError, AgentRLError):
        return None
