"""The machines of a run: logs and counts nodes that leave or join, and waits for room for new processes.

Ray itself waits for ever, and silently, for resources that a cluster lacks. Here such a wait is logged every minute with what
is missing, and ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayError

from agentrl import clock
from agentrl.cluster.ray.handles import START_TIMEOUT_S, WorkerHandle, all_of
from agentrl.cluster.ray.polling import actor_info, ask_ray, free_resources, watching
from agentrl.cluster.run_history import Node, RunHistory, format_resources
from agentrl.errors import InsufficientResourcesError, NotBuiltError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_FIRST_REPORT_S = 15.0
"""Time in which Ray starts a process if there is room, unless the machine is very busy."""
_REPORT_EVERY_S = 60.0


def living_nodes() -> dict[str, Node]:
    """Return the living nodes, keyed by id."""
    free = free_resources()
    return {
        node["NodeID"]: Node(
            address=node["NodeManagerAddress"],
            has=_computing(node["Resources"]),
            free=_computing(free.get(node["NodeID"], {})),
        )
        for node in ray.nodes()
        if node["Alive"]
    }


def has_place(worker: WorkerHandle) -> bool:
    """Ask Ray whether a spawned worker has a process; its class may not be built yet."""
    # An actor that lost its node and waits for another keeps its old `Pid`, but has no address.
    return bool(actor_info(worker.caller_id).get("Address", {}).get("IPAddress"))


class Nodes:
    """Watches the nodes of a run, and waits for room on them."""

    def __init__(
        self,
        *,
        max_wait_s: float,
        history: RunHistory,
        look: Callable[[], Mapping[str, Node]] = living_nodes,
        has_place: Callable[[WorkerHandle], bool] = has_place,
    ) -> None:
        """Take the longest wait for room of a process; `look` returns the living nodes."""
        self._max_wait_s = max_wait_s
        self._look = look
        self._has_place = has_place
        self._history = history

    def metrics(self) -> dict[str, float]:
        """Return the nodes lost since the run began."""
        return {"cluster/nodes_lost": float(self._history.num_nodes_lost)}

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Log and count nodes that leave or join, as long as the context lasts."""
        now = await ask_ray(self._look)
        # None in common: the first start, or the run's own Ray, which is a new one after each start.
        if not self._history.nodes.keys() & now.keys():
            self._history.nodes = now
        self._compare(now)  # some may have left since the last start
        async with watching(self._watch(), what="nodes"):
            yield

    async def until_placed(self, workers: Sequence[WorkerHandle], *, needs: str) -> None:
        """Wait until Ray has placed and started the process of each worker; log now and then what is missing.

        Args:
            workers: the spawned workers.
            needs: resources of each, for the message (`CPU 1, GPU 1`).

        Raises:
            WorkerDiedError: a worker was placed, and died.
            InsufficientResourcesError: a worker found no room within the longest wait.
            NotBuiltError: a worker has room, but was not built in `START_TIMEOUT_S`.
        """
        missing = list(workers)

        async def place(worker: WorkerHandle) -> None:
            await worker.until_placed()
            missing.remove(worker)

        placing = asyncio.ensure_future(all_of(map(place, workers)))
        try:
            await self._report_until(placing, missing, needs)
            placing.result()
        finally:
            placing.cancel()
            await asyncio.gather(placing, return_exceptions=True)  # cancels the calls while Ray still runs

    async def _report_until(self, placing: asyncio.Future[Any], missing: Sequence[WorkerHandle], needs: str) -> None:
        """Return when `placing` is done; until then log the `missing` without room."""
        first_report_s = min(_FIRST_REPORT_S, self._max_wait_s)
        has_room, since, report_at_s = False, clock.now(), first_report_s
        building_since: float | None = None
        while not await _is_done(placing, within_s=min(_LOOK_EVERY_S, first_report_s)):
            unplaced = await self._unplaced(missing, has_room=has_room)
            if has_room == bool(unplaced):  # the last one got its place, or one lost it
                died = clock.now() - since < first_report_s  # and was restarted at once: no node was lost
                has_room, since, report_at_s = not unplaced, clock.now(), first_report_s
                if has_room:
                    building_since = since = building_since if died and building_since is not None else since
            waited_s = clock.now() - since
            if has_room and waited_s >= START_TIMEOUT_S:
                raise NotBuiltError(
                    f"{_named(missing)}: there is room, but after {waited_s:.0f} s the class is not built yet (`__init__`). It "
                    "seems to hang; build the class by hand with the same `config`"
                )
            if unplaced and waited_s >= report_at_s:
                await self._log_unplaced(unplaced, needs, waited_s=waited_s)
                report_at_s = min(report_at_s + _REPORT_EVERY_S, self._max_wait_s)

    async def _unplaced(self, missing: Sequence[WorkerHandle], *, has_room: bool) -> list[WorkerHandle]:
        """Return the workers without a place; as at the last look (`has_room`) if Ray does not answer."""
        workers = tuple(missing)  # a copy: the thread reads it while `missing` shrinks
        try:
            return await ask_ray(lambda: [worker for worker in workers if not self._has_place(worker)])
        except RayError:
            return [] if has_room else list(workers)

    async def _log_unplaced(self, unplaced: Sequence[WorkerHandle], needs: str, *, waited_s: float) -> None:
        """Log the waiting workers and the nodes.

        Raises:
            InsufficientResourcesError: the longest wait is over.
        """
        try:
            nodes = "; ".join(map(str, (await ask_ray(self._look)).values())) or "none"
        except RayError as error:
            nodes = f"unknown, no answer from Ray: {error}"
        num_lost = self._history.num_nodes_lost
        lost = f"; {num_lost} left since the run began" if num_lost else ""
        what = f"{_named(unplaced)}: no room in {waited_s:.0f} s. Each takes {needs}, and the nodes are: {nodes}{lost}"
        if waited_s >= self._max_wait_s:
            raise InsufficientResourcesError(
                f"{what}. The run ends, since that was `cluster.max_wait_s`. Let more nodes join, or make pools and numbers "
                "of processes smaller; the same command goes on from the last checkpoint"
            )
        left_s = self._max_wait_s - waited_s
        logger.warning("%s. Waiting for another %.0f s; a node joins by `ray start --address=...`", what, left_s)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                self._compare(await ask_ray(self._look))
            except RayError as error:
                logger.warning("nodes: no answer from Ray: %s", error)

    def _compare(self, now: Mapping[str, Node]) -> None:
        before = self._history.nodes
        for name in before.keys() - now.keys():
            self._history.num_nodes_lost += 1
            node = before[name]
            logger.warning("node %s: left, with %s; %d nodes now", node.address, format_resources(node.has), len(now))
        for name in now.keys() - before.keys():
            logger.info(
                "node %s: joined, with %s; %d nodes now", now[name].address, format_resources(now[name].has), len(now)
            )
        self._history.nodes = now


async def _is_done(work: asyncio.Future[Any], *, within_s: float) -> bool:
    await asyncio.wait({work}, timeout=max(0.0, within_s))
    return work.done()


def _named(workers: Sequence[WorkerHandle]) -> str:
    return ", ".join(f"`{worker}`" for worker in workers)


def _computing(resources: Mapping[str, float]) -> dict[str, float]:
    return {kind: amount for kind, amount in resources.items() if kind in ("CPU", "GPU")}
