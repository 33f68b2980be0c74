"""The machines of a run: who leaves and who joins is told and counted, and a process that finds no room is waited for.

Ray itself waits for ever, and silently, for what a cluster does not have. Here such a wait has its line in the log, which says
what is missing, again every minute, and an end. So has that for a process which has its place, and is long in being built.
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray import ActorID, PlacementGroupID
from ray._private.state import state
from ray.core.generated import gcs_pb2
from ray.exceptions import RayError

from agentrl import clock
from agentrl.cluster.handles import START_TIMEOUT_S, WorkerHandle, all_of
from agentrl.cluster.history import RunHistory
from agentrl.cluster.node_drain import asked
from agentrl.cluster.watching import watching
from agentrl.errors import InsufficientResourcesError, NotBuiltError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 5.0
_FIRST_WORD_S = 15.0
"""Where there is room, Ray has found it and started a process there by then, unless the machine is very busy."""
_WORD_EVERY_S = 60.0
_SILENT_AFTER_S = 15.0
_SEEN_WITHIN_S = 1.0
"""An answer that is there is seen by then, once the event loop is free."""
_SILENT = (
    "Ray's head has said nothing for %.0f s: it is dead, or cannot be reached. If that lasts for a minute, Ray ends this "
    "process; then start the same command again"
)


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


def has_place(worker: WorkerHandle) -> bool:
    """Ask Ray whether a just spawned worker has a process, in which its class may still be being built, or gets one.

    It gets one where its place was set aside, however slowly a busy machine starts it.
    """
    # The public functions do not tell an actor's group.
    accessor = state._connect_and_get_accessor()
    encoded = accessor.get_actor_info(ActorID(bytes.fromhex(worker.caller_id)))
    if encoded is None:
        return False
    told = cast(Any, gcs_pb2).ActorTableData.FromString(encoded)
    # One that is to be started elsewhere, as its node has gone, keeps the `pid` that it had, and has no address.
    return bool(told.address.ip_address) or _is_set_aside(told.placement_group_id)


def _is_set_aside(group: bytes) -> bool:
    """Ask Ray whether there is such a group of places (empty: none), and all of its nodes are there."""
    return bool(group) and state.placement_group_table(PlacementGroupID(group)).get("state") == "CREATED"


class Nodes:
    """Looks at the nodes for as long as a run lasts, and waits for room on them."""

    def __init__(
        self,
        *,
        max_wait_s: float,
        history: RunHistory,
        look: Callable[[], Mapping[str, Node]] = living_nodes,
        has_place: Callable[[WorkerHandle], bool] = has_place,
    ) -> None:
        """Take how long a process may wait for room; `look` gives the nodes that are there."""
        self._max_wait_s = max_wait_s
        self._look = look
        self._has_place = has_place
        self._history = history
        self._waited_s = 0.0
        self._counted_until = -math.inf

    def metrics(self) -> dict[str, float]:
        """Return how many nodes have left since the run began, and for how long anything had no room since the last call."""
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
            InsufficientResourcesError: one has had no place for as long as a process may wait.
            NotBuiltError: all have a place, and one has not been built in `START_TIMEOUT_S`.
        """
        missing = list(workers)

        async def place(worker: WorkerHandle) -> None:
            await worker.until_placed()
            missing.remove(worker)

        placing = asyncio.ensure_future(all_of(map(place, workers)))
        try:
            while not placing.done():
                await self._while_without_room(placing, missing, needs)
                await self._while_built(placing, missing)
            placing.result()
        finally:
            placing.cancel()
            await asyncio.gather(placing, return_exceptions=True)  # while Ray is still there to be told

    async def _while_without_room(
        self, placing: asyncio.Future[Any], missing: Sequence[WorkerHandle], needs: str
    ) -> None:
        """Return when `placing` is done, or each of those still `missing` has a place; errors are those of `_say`."""
        started_at = counted_at = clock.now()
        look_at_s = word_at_s = min(_FIRST_WORD_S, self._max_wait_s)
        while not await _is_done(placing, by=started_at + look_at_s):
            homeless = await self._homeless(missing)
            if homeless is None:
                homeless = list(missing)
            if not homeless:
                return
            counted_at = self._count(counted_at)
            if look_at_s == word_at_s:
                await self._say(homeless, needs, waited_s=word_at_s)
                word_at_s = min(word_at_s + _WORD_EVERY_S, self._max_wait_s)
            look_at_s = min(look_at_s + _LOOK_EVERY_S, word_at_s)

    async def _while_built(self, placing: asyncio.Future[Any], missing: Sequence[WorkerHandle]) -> None:
        """Return when `placing` is done, or one of those still `missing` has lost its place with its node."""
        started_at, word_at_s = clock.now(), _WORD_EVERY_S
        while not await _is_done(placing, by=clock.now() + _LOOK_EVERY_S):
            if await self._homeless(missing):
                return
            if (waited_s := clock.now() - started_at) < word_at_s:
                continue
            problem = (
                f"{_named(missing)}: there is room, but after {waited_s:.0f} s the class is not built yet (`__init__`)"
            )
            if waited_s >= START_TIMEOUT_S:
                raise NotBuiltError(f"{problem}. It is taken to hang; build the class by hand with the same `config`")
            logger.warning("%s", problem)
            word_at_s += _WORD_EVERY_S

    async def _homeless(self, missing: Sequence[WorkerHandle]) -> list[WorkerHandle] | None:
        """Return who has no place; None where Ray does not say."""
        workers = tuple(missing)  # which is asked for in a thread, while some may get theirs
        try:
            return await asked(lambda: [worker for worker in workers if not self._has_place(worker)])
        except RayError:
            return None

    def _count(self, since: float) -> float:
        """Count the time from `since` to now, less what another wait has counted of it; returns now."""
        now = clock.now()
        self._waited_s += now - max(since, self._counted_until)
        self._counted_until = now
        return now

    async def until_room(self, lacking: Callable[[], str | None]) -> None:
        """Wait until the nodes lack nothing; say now and then what is missing.

        Args:
            lacking: gives what they lack, in words, or None.

        Raises:
            InsufficientResourcesError: they have lacked it for as long as a process may wait.
        """
        started_at, word_at_s = clock.now(), 0.0
        counted_at = started_at
        while (problem := await self._asked_patiently(lacking)) is not None:
            waited_s = clock.now() - started_at
            if waited_s >= word_at_s:
                self._tell(problem, waited_s=waited_s)
                word_at_s = min(word_at_s + _WORD_EVERY_S, self._max_wait_s)
            await asyncio.sleep(min(_LOOK_EVERY_S, word_at_s - waited_s))
            counted_at = self._count(counted_at)

    async def _asked_patiently(self, lacking: Callable[[], str | None]) -> str | None:
        try:
            return await asked(lacking)
        except RayError as error:
            return f"Ray does not say which nodes there are: {error}"

    async def _say(self, homeless: Sequence[WorkerHandle], needs: str, *, waited_s: float) -> None:
        """Log who waits for what; the errors are those of `_tell`."""
        try:
            there = await asked(self._look)
            if not there:
                raise InsufficientResourcesError(
                    "Ray has no node left, not even that of this process, so that nothing can start any more; the same command "
                    "goes on from the last checkpoint"
                )
            nodes = "; ".join(map(str, there.values()))
        except RayError as error:
            nodes = f"unknown, since Ray does not say: {error}"
        num_lost = self._history.num_nodes_lost
        lost = f"; {num_lost} left since the run began" if num_lost else ""
        self._tell(
            f"{_named(homeless)}: no room in {waited_s:.0f} s. Each takes {needs}, and the nodes are: {nodes}{lost}",
            waited_s=waited_s,
        )

    def _tell(self, what: str, *, waited_s: float) -> None:
        """Log what is waited for.

        Raises:
            InsufficientResourcesError: that was the last time.
        """
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
            silent = asyncio.create_task(_tell_silence())
            try:
                self._compare(await asked(self._look))
            except RayError as error:
                logger.warning("nodes: Ray does not say which there are: %s", error)
            finally:
                silent.cancel()

    def _compare(self, now: Mapping[str, Node]) -> None:
        before = self._history.nodes
        for name in before.keys() - now.keys():
            self._history.num_nodes_lost += 1
            node = before[name]
            logger.warning("node %s left, with %s; %d are there", node.address, _shown(node.has), len(now))
        for name in now.keys() - before.keys():
            logger.info("node %s joined, with %s; %d are there", now[name].address, _shown(now[name].has), len(now))
        self._history.nodes = now


async def _tell_silence() -> None:
    """Say that an answer is late: else the log would end without a reason, as Ray tries for a minute and ends this process."""
    await asyncio.sleep(_SILENT_AFTER_S - _SEEN_WITHIN_S)
    await asyncio.sleep(_SEEN_WITHIN_S)  # if this process itself did nothing all the while, the answer may be there
    logger.error(_SILENT, _SILENT_AFTER_S)


async def _is_done(work: asyncio.Future[Any], *, by: float) -> bool:
    await asyncio.wait({work}, timeout=max(0.0, by - clock.now()))
    return work.done()


def _named(workers: Sequence[WorkerHandle]) -> str:
    return ", ".join(f"`{worker}`" for worker in workers)


def _computing(resources: Mapping[str, float]) -> dict[str, float]:
    return {kind: amount for kind, amount in resources.items() if kind in ("CPU", "GPU")}


def _shown(amounts: Mapping[str, float]) -> str:
    return ", ".join(f"{kind} {amount:g}" for kind, amount in amounts.items() if amount) or "nothing"
