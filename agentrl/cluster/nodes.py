"""The machines of a run: who leaves and who joins is told and counted, and a process that finds no room is waited for.

Ray itself waits for ever, and silently, for what a cluster does not have. Here such a wait has its line in the log, which says
what is missing, again every minute, and an end.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import ray
from ray._private.state import state
from ray.exceptions import RayError

from agentrl import clock
from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.cluster.history import RunHistory
from agentrl.cluster.node_drain import asked
from agentrl.cluster.watching import watching
from agentrl.errors import NoRoomError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_FIRST_WORD_S = 15.0
"""A process that has a place has started by then, unless the machine is very busy. Ray does not say which of the two it is."""
_WORD_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as Ray sees it."""

    address: str
    has: Mapping[str, float]
    """Processors and GPUs (`{"CPU": 8.0, "GPU": 8.0}`)."""
    free: Mapping[str, float]
    """What of them nobody has reserved."""

    def __str__(self) -> str:
        return f"{self.address} (has {_shown(self.has)}; free {_shown(self.free)})"


def living_nodes() -> dict[str, Node]:
    """Ask Ray for the nodes that are there, by their ids."""
    free: Mapping[str, Mapping[str, float]] = state.available_resources_per_node()
    return {
        node["NodeID"]: Node(
            address=node["NodeManagerAddress"],
            has=_computing(node["Resources"]),
            free=_computing(free.get(node["NodeID"], {})),
        )
        for node in ray.nodes()
        if node["Alive"]
    }


class Nodes:
    """Looks at the nodes for as long as a run lasts, and waits for room on them."""

    def __init__(
        self, *, max_wait_s: float, history: RunHistory, look: Callable[[], Mapping[str, Node]] = living_nodes
    ) -> None:
        """Take how long a process may wait for room; `look` gives the nodes that are there."""
        self._max_wait_s = max_wait_s
        self._look = look
        self._history = history
        self._waited_s = 0.0

    def metrics(self) -> dict[str, float]:
        """Return how many nodes have left since the run began, and for how long processes waited since the last call."""
        waited_s, self._waited_s = self._waited_s, 0.0
        return {"cluster/nodes_lost": float(self._history.num_nodes_lost), "cluster/room_wait_s": waited_s}

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Log and count nodes that leave or join, for as long as the context lasts."""
        now = await asked(self._look)
        # None in common: the first start, or a Ray of the run's own, which is another one after each start.
        if not self._history.nodes.keys() & now.keys():
            self._history.nodes = now
        self._compare(now)  # with those of the last start: some may have left since
        async with watching(self._watch(), what="nodes"):
            yield

    async def until_placed(self, workers: Sequence[WorkerHandle], *, needs: str) -> None:
        """Wait until Ray has found a place for the process of each worker and started it; say now and then what is missing.

        Args:
            workers: just spawned.
            needs: what each of them takes, for the message (`CPU 1, GPU 1`).

        Raises:
            WorkerDiedError: one was placed, and died.
            NoRoomError: one has had no place for as long as a process may wait.
        """
        missing, started_at, word_at_s = list(workers), clock.now(), min(_FIRST_WORD_S, self._max_wait_s)

        async def place(worker: WorkerHandle) -> None:
            await worker.until_placed()
            missing.remove(worker)

        placing = asyncio.ensure_future(all_of(map(place, workers)))
        try:
            while True:
                await asyncio.wait({placing}, timeout=max(0.0, started_at + word_at_s - clock.now()))
                if placing.done():
                    placing.result()
                    return
                await self._say(missing, needs, waited_s=word_at_s)
                word_at_s = min(word_at_s + _WORD_EVERY_S, self._max_wait_s)
        finally:
            placing.cancel()
            await asyncio.gather(placing, return_exceptions=True)  # while Ray is still there to be told
            if word_at_s > _FIRST_WORD_S:
                self._waited_s += clock.now() - started_at

    async def until_room(self, lacking: Callable[[], str | None]) -> None:
        """Wait until the nodes lack nothing; say now and then what is missing.

        Args:
            lacking: gives what they lack, in words, or None.

        Raises:
            NoRoomError: they have lacked it for as long as a process may wait.
        """
        started_at, word_at_s = clock.now(), 0.0
        while (problem := await self._asked_patiently(lacking)) is not None:
            waited_s = clock.now() - started_at
            if waited_s >= word_at_s:
                self._tell(problem, waited_s=waited_s)
                word_at_s = min(word_at_s + _WORD_EVERY_S, self._max_wait_s)
            await asyncio.sleep(min(_LOOK_EVERY_S, word_at_s - waited_s))
        self._waited_s += clock.now() - started_at

    async def _asked_patiently(self, lacking: Callable[[], str | None]) -> str | None:
        try:
            return await asked(lacking)
        except RayError as error:
            return f"Ray does not say which nodes there are: {error}"

    async def _say(self, missing: Sequence[WorkerHandle], needs: str, *, waited_s: float) -> None:
        """Log who waits for what; the errors are those of `_tell`."""
        try:
            there = await asked(self._look)
            if not there:
                raise NoRoomError(
                    "Ray has no node left, not even that of this process, so that nothing can start any more; the same command "
                    "goes on from the last checkpoint"
                )
            nodes = "; ".join(map(str, there.values()))
        except RayError as error:
            nodes = f"unknown, since Ray does not say: {error}"
        who = ", ".join(f"`{worker}`" for worker in missing)
        num_lost = self._history.num_nodes_lost
        lost = f"; {num_lost} left since the run began" if num_lost else ""
        self._tell(
            f"{who}: not started in {waited_s:.0f} s, for want of room or because it takes long. Each takes {needs}, and the "
            f"nodes are: {nodes}{lost}",
            waited_s=waited_s,
        )

    def _tell(self, what: str, *, waited_s: float) -> None:
        """Log what is waited for.

        Raises:
            NoRoomError: that was the last time.
        """
        if waited_s >= self._max_wait_s:
            raise NoRoomError(
                f"{what}. The run ends, since that was `cluster.max_wait_s`. Let more nodes join, or make pools and numbers "
                "of processes smaller; the same command goes on from the last checkpoint"
            )
        left_s = self._max_wait_s - waited_s
        logger.warning("%s. Waiting for another %.0f s; a node joins by `ray start --address=...`", what, left_s)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                self._compare(await asked(self._look))
            except RayError as error:
                logger.warning("nodes: Ray does not say which there are: %s", error)

    def _compare(self, now: Mapping[str, Node]) -> None:
        before = self._history.nodes
        for name in before.keys() - now.keys():
            self._history.num_nodes_lost += 1
            node = before[name]
            logger.warning("node %s left, with %s; %d are there", node.address, _shown(node.has), len(now))
        for name in now.keys() - before.keys():
            logger.info("node %s joined, with %s; %d are there", now[name].address, _shown(now[name].has), len(now))
        self._history.nodes = now


def _computing(resources: Mapping[str, float]) -> dict[str, float]:
    return {kind: amount for kind, amount in resources.items() if kind in ("CPU", "GPU")}


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {amount:g}" for kind, amount in amounts.items() if amount) or "nothing"
