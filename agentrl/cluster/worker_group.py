"""All ranks of one role as one object, with the three ways of calling them: all alike, each its share, the first alone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.errors import AgentRLError, ModelDiedError, WorkerDiedError

logger = logging.getLogger(__name__)
T = TypeVar("T")

_ASK_EVERY_S = 60.0
_SILENT_S = 300.0
"""A rank that says nothing for so long hangs. A long update is none: its threads give the interpreter back."""
_PING_TIMEOUT_S = 3.0
"""A rank answers between two lines of Python, whatever it computes; a dead one is known to Ray sooner."""


class WorkerGroup:
    """The ranks of one process group, called together.

    The first error of any rank is raised at once. The others may wait for it in a collective for ever, so it ends the whole
    group: all processes are killed, and every later call raises the same error.
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
            ranks: processes of which some may have no place yet.
            ranks_per_share: so many neighbours at a time compute together, and are given the same share of what is divided.
            until_placed: waits until all have a place; absent: Ray is trusted to find them.
        """
        self.name = name
        self.ranks = list(ranks)
        self._ranks_per_share = ranks_per_share
        self._until_placed = until_placed
        self._failure: AgentRLError | None = None

    @property
    def num_shares(self) -> int:
        """Into how many parts work is divided."""
        return len(self.ranks) // self._ranks_per_share

    async def setup(self) -> None:
        """Form the process group and load the models on every rank, once all ranks have a place."""
        if self._until_placed is not None:
            await self._together([self._until_placed(self.ranks)], answer=False)
        at = await self._together([self.ranks[0].rendezvous()])
        await self.each("setup", [(rank, len(self.ranks), at[0]) for rank in range(len(self.ranks))])

    async def all(self, method: str, *args: Any) -> list[Any]:
        """Call every rank with the same arguments (one to all); returns what each gave."""
        return await self.each(method, [args] * len(self.ranks))

    async def first(self, method: str, *args: Any) -> Any:
        """Call rank zero alone: for what needs no other rank."""
        [result] = await self._together([getattr(self.ranks[0], method)(*args)])
        return result

    async def each(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call every rank with arguments of its own; returns what each gave."""
        calls = zip(self.ranks, arguments, strict=True)
        return await self._together([getattr(rank, method)(*args) for rank, args in calls])

    async def each_share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call every rank with the arguments of its share; returns what the first rank of each share gave."""
        per_rank = [given for given in arguments for _ in range(self._ranks_per_share)]
        return (await self.each(method, per_rank))[:: self._ranks_per_share]

    async def split(self, method: str, *args: Any, items: Sequence[Any], shares: Sequence[Sequence[int]]) -> list[Any]:
        """Give the ranks shares of `items` (data parallel), however many there are, and gather references to the results.

        Args:
            method: takes `args`, then its share of `items`; returns something small, then one result per item.
            args: the same for every rank.
            items: references, which the ranks resolve; they do not pass through this process.
            shares: which items each share is made of. A rank may get nothing, and is called all the same.

        Returns:
            A reference to the result of each item, in the order of `items`.
        """
        made = await self._together(
            [
                rank.call_keeping_rest(method, len(share), *args, *(items[index] for index in share))
                for number, rank in enumerate(self.ranks)
                for share in [shares[number // self._ranks_per_share]]
            ]
        )
        results = {
            index: ref
            for share, (_, refs) in zip(shares, made[:: self._ranks_per_share], strict=True)
            for index, ref in zip(share, refs, strict=True)
        }
        return [results[index] for index in range(len(items))]

    async def require_alive(self) -> None:
        """Return where every rank has its process, as far as Ray knows.

        Raises:
            ModelDiedError: one has none.
        """
        if deaths := await self._deaths():
            raise ModelDiedError(str(deaths[0]))

    async def silent(self) -> list[str]:
        """Return the ranks that do not answer at once, by name."""
        answers = await self._ping_all(_PING_TIMEOUT_S)
        return [f"{self.name} {rank}" for rank, error in enumerate(answers) if error is not None]

    def kill(self) -> None:
        """End every process at once."""
        for rank in self.ranks:
            rank.kill()

    async def _together(self, calls: Iterable[Coroutine[Any, Any, T]], *, answer: bool = True) -> list[T]:
        """Await `calls`, while the ranks `answer`; the first that fails ends the group."""
        calls = list(calls)
        if self._failure is not None:
            for call in calls:
                call.close()
            raise self._failure
        try:
            return await (self._while_answering(all_of(calls)) if answer else all_of(calls))
        except AgentRLError as error:
            self._failure = await self._cause_of(error)
            self.kill()
            raise self._failure from (None if self._failure is error else error)

    async def _while_answering(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` for as long as every rank answers beside it; one that hangs would keep the others for ever.

        Raises:
            ModelDiedError: one has said nothing for too long.
        """
        working, watching = asyncio.ensure_future(work), asyncio.ensure_future(self._until_silent())
        try:
            await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise ModelDiedError(f"{watching.result()}: says nothing for {_SILENT_S:g} s, and is taken for dead")
        finally:
            for task in (working, watching):
                task.cancel()
            await asyncio.gather(working, watching, return_exceptions=True)

    async def _until_silent(self) -> str:
        """Return the name of the first rank that does not answer any more; a dead one is told by Ray."""
        while True:
            await asyncio.sleep(_ASK_EVERY_S)
            for rank, error in zip(self.ranks, await self._ping_all(_SILENT_S), strict=True):
                if isinstance(error, TimeoutError):
                    return str(rank)

    async def _cause_of(self, error: AgentRLError) -> AgentRLError:
        """Return the error to tell: where a rank has died, the others raise that they lost it, and may do so first."""
        if isinstance(error, WorkerDiedError):
            return ModelDiedError(str(error))
        deaths = await self._deaths()
        return ModelDiedError(str(deaths[0])) if deaths else error

    async def _deaths(self) -> list[WorkerDiedError]:
        """Return how Ray tells of each rank whose process is gone, as far as it knows."""
        return [error for error in await self._ping_all(_PING_TIMEOUT_S) if isinstance(error, WorkerDiedError)]

    async def _ping_all(self, within_s: float) -> list[Exception | None]:
        """Return of each rank None where it answers, else why not: `TimeoutError`, or how Ray tells that it is gone."""

        async def ping(rank: WorkerHandle) -> Exception | None:
            try:
                async with asyncio.timeout(within_s):
                    await rank.ping()
            except (TimeoutError, AgentRLError) as error:
                return error
            return None

        return await asyncio.gather(*map(ping, self.ranks))
