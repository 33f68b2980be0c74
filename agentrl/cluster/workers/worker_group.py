"""All ranks of one role as one object: calls go to all ranks, to each with its share, or to the first."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from agentrl.cluster.ray.handles import WorkerHandle, all_of
from agentrl.errors import AgentRLError, ModelDiedError, WorkerDiedError

T = TypeVar("T")

_PING_TIMEOUT_S = 3.0
"""Limit for a living rank's answer, even while it computes; Ray reports a dead one sooner."""


class WorkerGroup:
    """The ranks of one process group, called together.

    The first error of any rank is raised at once and ends the group, because the others may wait for that rank in a collective
    for ever.
    """

    def __init__(
        self,
        name: str,
        ranks: Sequence[WorkerHandle],
        *,
        ranks_per_share: int = 1,
        until_placed: Callable[[Sequence[WorkerHandle]], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """Take the started processes, rank by rank.

        Args:
            name: their role (`actor_ref`).
            ranks: the processes, placed or not.
            ranks_per_share: number of neighbouring ranks that compute together on the same share of divided work.
            until_placed: waits until all are placed; absent: they are.
        """
        self.name = name
        self.ranks = list(ranks)
        self._ranks_per_share = ranks_per_share
        self._until_placed = until_placed
        self._failure: AgentRLError | None = None
        """Set once all processes are killed; every call then raises it."""

    @property
    def num_shares(self) -> int:
        """Number of parts into which work is divided."""
        return len(self.ranks) // self._ranks_per_share

    async def setup(self) -> None:
        """Form the process group and load the models on every rank, once all ranks are placed."""
        if self._until_placed:
            await self._together([self._until_placed(self.ranks)])
        [store] = await self._together([self.ranks[0].open_store()])
        await self.each("setup", [(rank, len(self.ranks), *store) for rank in range(len(self.ranks))])

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Call every rank with the same arguments; return all results."""
        return await self.each(method, [args] * len(self.ranks))

    async def first(self, method: str, *args: Any) -> Any:
        """Call rank 0 only."""
        [result] = await self._together([getattr(self.ranks[0], method)(*args)])
        return result

    async def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call every rank with its own arguments; return all results."""
        calls = zip(self.ranks, arguments, strict=True)
        return await self._together([getattr(rank, method)(*args) for rank, args in calls])

    async def each_share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call every rank with the arguments of its share; return the result of each share's first rank."""
        per_rank = [args for args in arguments for _ in range(self._ranks_per_share)]
        return (await self.each(method, per_rank))[:: self._ranks_per_share]

    async def split(self, method: str, *args: Any, items: Sequence[Any], shares: Sequence[Sequence[int]]) -> list[Any]:
        """Split `items` over the ranks (data parallel), and return references to the results, in the order of `items`.

        Args:
            method: takes `args`, then its share of `items`; returns something small, then one result per item.
            args: the same for every rank.
            items: references, which the ranks resolve; they do not pass through this process.
            shares: indices of the items of each share. A rank with an empty share is called too.
        """
        replies = await self._together(
            [
                rank.call_keeping_rest(method, len(share), *args, *(items[index] for index in share))
                for number, rank in enumerate(self.ranks)
                for share in [shares[number // self._ranks_per_share]]
            ]
        )
        results = {
            index: ref
            for share, (_, refs) in zip(shares, replies[:: self._ranks_per_share], strict=True)
            for index, ref in zip(share, refs, strict=True)
        }
        return [results[index] for index in range(len(items))]

    async def require_alive(self) -> None:
        """Raise `ModelDiedError` if the process of a rank is gone, as far as Ray knows."""

        async def ping(rank: WorkerHandle) -> None:
            try:
                async with asyncio.timeout(_PING_TIMEOUT_S):
                    await rank.ping()
            except WorkerDiedError as error:
                raise ModelDiedError(str(error)) from error
            except (TimeoutError, AgentRLError):
                pass  # not known to be dead

        await all_of(map(ping, self.ranks))

    def kill(self) -> None:
        """End every process at once."""
        for rank in self.ranks:
            rank.kill()

    async def _together(self, calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
        """Await `calls`; the first failure ends the group."""
        calls = list(calls)
        if self._failure is not None:
            for call in calls:
                call.close()
            raise self._failure
        try:
            return await all_of(calls)
        except AgentRLError as error:
            self._failure = await self._cause_of(error)
            self.kill()
            raise self._failure from (None if self._failure is error else error)

    async def _cause_of(self, error: AgentRLError) -> AgentRLError:
        """Return the first cause of an error: ranks that lost a dead one may raise before its death is known."""
        if isinstance(error, WorkerDiedError):
            return ModelDiedError(str(error))
        try:
            await self.require_alive()
        except ModelDiedError as death:
            return death
        return error
