"""All ranks of the actor as one object, and the way of its weights to the engines."""

import asyncio
from collections.abc import Sequence
from typing import Any

from agentrl.cluster.engine_fleet import EngineFleet
from agentrl.cluster.handles import WorkerHandle, all_of
from agentrl.config.schema import ActorSection
from agentrl.errors import WorkerError
from agentrl.training.sharding import plan_update
from agentrl.types import Group
from agentrl.weight_sync.base import WeightSource

_PUBLISH_TIMEOUT_S = 300.0


class Learner:
    """Splits an update over the ranks and calls them together."""

    def __init__(self, actor: ActorSection, ranks: Sequence[WorkerHandle]) -> None:
        """Take the started processes, rank by rank."""
        self._config = actor
        self._ranks = list(ranks)

    async def setup(self) -> None:
        """Form the process group and load the model on every rank."""
        at = await self._ranks[0].rendezvous()
        await self._all("setup", [(rank, len(self._ranks), at) for rank in range(len(self._ranks))])

    async def update(self, groups: Sequence[Group], *, step: int) -> dict[str, float]:
        """Update the policy with the selected groups; returns metrics `actor/...` reduced over the ranks."""
        shares = plan_update(
            groups, step=step, num_ranks=len(self._ranks), num_mini_batches=self._config.mini_batches_per_step
        )
        metrics = await self._all("update", [(shard, *(made.ref for made in refs)) for shard, refs in shares])
        return metrics[0]

    async def publish_weights(self) -> WeightSource:
        """Gather the current weights where engines can read them."""
        source = (await self._all("publish_weights"))[0]
        if source is None:
            raise WorkerError("actor 0: published no weights")
        return source

    async def save(self, path: str) -> None:
        """Write a sharded checkpoint into the folder `path`."""
        await self._all("save", [(path,)] * len(self._ranks))

    async def load(self, path: str) -> None:
        """Go on from the checkpoint in the folder `path`."""
        await self._all("load", [(path,)] * len(self._ranks))

    async def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        await self._all("export", [(path,)] * len(self._ranks))

    async def _all(self, method: str, arguments: Sequence[tuple[Any, ...]] | None = None) -> list[Any]:
        per_rank = arguments or [()] * len(self._ranks)
        # The first error of any rank is raised at once; the others may wait for it in a collective for ever.
        calls = zip(self._ranks, per_rank, strict=True)
        return await all_of(getattr(rank, method)(*args) for rank, args in calls)


class WeightSync:
    """Brings the actor's weights into every engine."""

    def __init__(self, learner: Learner, engines: EngineFleet) -> None:
        """Take both ends."""
        self._learner = learner
        self._engines = engines

    async def push(self, *, version: int) -> None:
        """Load the current weights into all engines and stamp them `version`; see `EngineFleet.push`.

        Raises:
            EngineError: an engine refuses them, or none is left.
            WorkerError: the actor did not gather them in time.
        """
        await self._engines.push(lambda: self._publish(version), version=version)

    async def _publish(self, version: int) -> WeightSource:
        try:
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                return await self._learner.publish_weights()
        except TimeoutError as error:
            raise WorkerError(
                f"weight sync of version {version}: the actor did not gather its weights in {_PUBLISH_TIMEOUT_S:g} s"
            ) from error
