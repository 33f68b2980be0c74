"""The workers of extra roles: of classes that know nothing of a run, whose processes may die at any time."""

import asyncio

from ray._private.state import state
from ray.exceptions import RayError

from agentrl.cluster.handles import WorkerHandle
from agentrl.cluster.node_drain import asked
from agentrl.errors import NotBuiltError

_LOOK_EVERY_S = 1.0
_MAX_DEATHS = 2
"""Before the class is built. One may come of a node that was lost at that moment; a reason of its own strikes again."""


class ExtraWorkerHandle(WorkerHandle):
    """A handle of a worker that Ray starts again whenever its process dies, and for ever."""

    @classmethod
    def of(cls, handle: WorkerHandle) -> "ExtraWorkerHandle":
        """Return another handle of the same worker."""
        return cls(handle._actor, handle._name)

    async def until_placed(self) -> None:
        """Return when the process is there, with its class built.

        Raises:
            NotBuiltError: the constructor raised, or its process ended in it and again when Ray had started it again.
        """
        placed = asyncio.ensure_future(super().until_placed())
        try:
            while True:
                await asyncio.wait({placed}, timeout=_LOOK_EVERY_S)
                if placed.done():
                    return placed.result()
                if await self.num_deaths() >= _MAX_DEATHS:
                    raise NotBuiltError(
                        f"{self}: its process ended {_MAX_DEATHS} times while its class was being built (`__init__`): for want "
                        "of memory, by a crash of native code, or by itself. What it wrote is in `ray_logs/` in the run's "
                        "directory; build the class by hand with the same `config`, or give it more memory"
                    )
        finally:
            placed.cancel()
            await asyncio.gather(placed, return_exceptions=True)

    async def num_deaths(self) -> int:
        """Return how often the process has died and been started again; 0 where Ray does not say."""
        try:
            return (await asked(lambda: state.actor_table(self.caller_id))).get("NumRestarts", 0)
        except RayError:
            return 0
