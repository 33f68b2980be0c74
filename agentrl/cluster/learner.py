"""Control flow of one update over the roles that take part in it.

Roles may share processes or have their own, on any number of ranks. Roles of one pool share its GPUs and compute one after
another; roles of different pools compute at the same time. Only references and metrics come here: a role's result for a
trajectory stays on its node until another role needs it.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentrl.cluster.ray.handles import all_of, fetched
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.config.layout import layout
from agentrl.config.schema.run import RunConfig
from agentrl.errors import CheckpointError, WorkerError
from agentrl.training.update.update_plan import plan_scoring, plan_update, score_metrics, with_scores
from agentrl.types import Group
from agentrl.weight_sync.base import Transport, WeightSource

logger = logging.getLogger(__name__)

_PUBLISH_TIMEOUT_S = 300.0

References = dict[str, Any]
"""References to a role's results, keyed by trajectory id."""


class Learner:
    """Splits an update over roles and ranks, and calls them in order."""

    def __init__(
        self, config: RunConfig, launch: Callable[[], Sequence[WorkerGroup]], history: RunHistory | None = None
    ) -> None:
        """Start the processes; `launch` starts a group for each role, and is called again by `restart`."""
        self._config = config
        self._launch = launch
        self.groups: dict[str, WorkerGroup] = {}
        """Groups, keyed by component; components of one role share a group."""
        self._history = history or RunHistory()
        self._pools = {name: placement.pool for placement in layout(config) for name in placement.components}
        self._pool_locks: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Locks keyed by pool, held while one of its roles computes."""
        self.published: WeightSource | None = None
        """The last weights that these processes have published."""
        self._sending: asyncio.Task[list[str | None]] | None = None
        self._spawn()

    async def start(self) -> None:
        """Form the process groups and load the models; the first failure ends the run."""
        await all_of(group.setup() for group in set(self.groups.values()))

    async def restart(self) -> None:
        """Replace all processes; they have the initial weights until `load`."""
        for group in set(self.groups.values()):
            group.kill()
        self._history.num_restarts += 1
        self._spawn()
        await self.start()

    async def require_alive(self) -> None:
        """Raise `ModelDiedError` if the process of a rank is gone, as far as Ray knows."""
        await all_of(group.require_alive() for group in set(self.groups.values()))

    async def update(self, groups: Sequence[Group], *, step: int) -> dict[str, float]:
        """Update the policy, and the critic if there is one; return the metrics of all roles, reduced over the ranks."""
        kl_coefficient = None
        if self._config.has_reference:
            kl_coefficient = await self.groups["actor"].first("call", "actor", "kl_coefficient")
        needed = self._scores_needed()
        scores = await all_of(self._score(component, method, groups) for component, method in needed.values())
        inputs = dict(zip(needed, scores, strict=True))
        groups, metrics = await self._with_scores(groups, inputs.pop("scores")) if "scores" in inputs else (groups, {})
        updates = await all_of(
            self._update(component, groups, inputs, step=step, kl_coefficient=kl_coefficient)
            for component in reversed(self._trained)
        )
        for reported in updates:
            metrics |= reported
        return metrics | {"actor/restarts": float(self._history.num_restarts)}

    async def publish(self, version: int, engines: Sequence[str]) -> WeightSource:
        """Make the current weights readable as `version`, or begin to send a stream to `engines`, given by name.

        Raises:
            WorkerError: the actor did not gather them in time.
        """
        actor, rollout = self.groups["actor"], self._config.rollout
        processes = range(rollout.tensor_parallel_size * rollout.data_parallel_size)
        receivers = [f"{engine}/{process}" for engine in engines for process in processes]
        try:
            async with asyncio.timeout(_PUBLISH_TIMEOUT_S):
                await self.sent()
                [source, *_] = await actor.all(
                    "call", "actor", "publish_weights", transport_of(self._config), receivers
                )
                source = replace(source, version=version, node=await actor.first("node_id"))
        except TimeoutError as error:
            raise WorkerError(
                f"weight sync of version {version}: the actor did not gather its weights in {_PUBLISH_TIMEOUT_S:g} s"
            ) from error
        if source.transport.is_stream:
            self._sending = asyncio.create_task(actor.all("call", "actor", "send_weights", source))
        self.published = source
        return source

    async def sent(self) -> None:
        """Return when the last stream has been sent, which the actor limits; raise `ModelDiedError` if it is gone."""
        sending, self._sending = self._sending, None  # its error must be raised only once
        if sending is not None and (problem := next(filter(None, await sending), None)):
            logger.warning("weight sync: %s", problem)

    async def save(self, url: str) -> None:
        """Begin to write a sharded checkpoint into the folder `url`; return when training may go on."""
        for name in self._trained:
            await self.groups[name].all("call", name, "save", f"{url}/{name}")

    async def saved(self) -> bool:
        """Return whether all ranks have written their parts; after a `CheckpointError` training may go on."""
        parts = [part for name in self._trained for part in await self.groups[name].all("saved", name)]
        for part in parts:
            if isinstance(part, CheckpointError):
                raise part
        return all(parts)

    async def load(self, url: str) -> None:
        """Load the checkpoint in the folder `url`."""
        for name in self._trained:
            await self.groups[name].all("call", name, "load", f"{url}/{name}")

    async def reset_optimiser(self, *, step: int) -> None:
        """Reset the optimisers and their warm-up after update `step`."""
        for name in self._trained:
            await self.groups[name].all("call", name, "reset_optimiser", step)

    async def load_reference(self, url: str) -> None:
        """Load the policy of the checkpoint in the folder `url` into the reference, if there is one."""
        if "ref" in self.groups:
            await self.groups["ref"].all("call", "ref", "load", f"{url}/actor")

    @property
    def _trained(self) -> list[str]:
        """Components with a state to save."""
        return [name for name in ("actor", "critic") if name in self.groups]

    async def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        await self.groups["actor"].all("call", "actor", "export", path)

    def _spawn(self) -> None:
        self.published = self._sending = None
        self.groups = {name: group for group in self._launch() for name in group.name.split("_")}

    def _scores_needed(self) -> dict[str, tuple[str, str]]:
        """Return component and method of each score needed before an update, keyed by field of `TokenInputs` or `scores`."""
        needed = {}
        if "reward" in self.groups:
            needed["scores"] = ("reward", "score")
        if "ref" in self.groups:
            needed["ref_logprobs"] = ("ref", "logprobs")
        elif self._config.has_reference:
            needed["ref_logprobs"] = ("actor", "reference_logprobs")
        if self._config.algorithm.kl_in_reward:
            needed["old_logprobs"] = ("actor", "logprobs")
        if "critic" in self.groups:
            needed["values"] = ("critic", "values")
        return needed

    async def _with_scores(
        self, groups: Sequence[Group], references: References
    ) -> tuple[Sequence[Group], dict[str, float]]:
        """Return the groups with the reward model's scores added to their rewards, and the metrics of these scores."""
        scores = dict(zip(references, await all_of(map(fetched, references.values())), strict=True))
        reward = self._config.reward
        scored = with_scores(groups, scores, reward_weight=reward.weight, score_weight=reward.model.weight)
        return scored, score_metrics(groups, scores, self._config.algorithm.selection)

    async def _score(self, component: str, method: str, groups: Sequence[Group]) -> References:
        """Call a method of a component that returns one result per trajectory."""
        trajectories = [trajectory for group in groups for trajectory in group.trajectories]
        ranks = self.groups[component]
        async with self._pool_locks[self._pools[component]]:
            results = await ranks.split(
                "score",
                component,
                method,
                items=[trajectory.ref for trajectory in trajectories],
                # The reward model reads the last token only, and computes every trajectory by itself.
                shares=plan_scoring(groups, num_ranks=ranks.num_shares, share_prefixes=component != "reward"),
            )
        ids = [trajectory.summary.trajectory_id for trajectory in trajectories]
        return dict(zip(ids, results, strict=True))

    async def _update(
        self,
        component: str,
        groups: Sequence[Group],
        inputs: Mapping[str, References],
        *,
        step: int,
        kl_coefficient: float | None,
    ) -> dict[str, float]:
        """Update a component with the others' results (`inputs`, keyed by field of `TokenInputs`); return its metrics."""
        ranks = self.groups[component]
        shares = plan_update(
            groups,
            step=step,
            num_ranks=ranks.num_shares,
            num_mini_batches=self._config.actor.mini_batches_per_step,
            kl_coefficient=kl_coefficient,
        )
        names = tuple(inputs)
        arguments = [
            (
                component,
                shard,
                names,
                *(trajectory.ref for trajectory in trajectories),
                *(inputs[name][t.summary.trajectory_id] for name in names for t in trajectories),
            )
            for shard, trajectories in shares
        ]
        async with self._pool_locks[self._pools[component]]:
            return (await ranks.each_share("update", arguments))[0]


def transport_of(config: RunConfig) -> Transport:
    """Return how weights travel: in-process if the actor's only rank holds the engine."""
    together = any({"actor", "rollout"} <= set(placement.components) for placement in layout(config))
    if together and config.actor.num_workers == 1:
        return Transport.IN_PROCESS
    return Transport(config.cluster.weight_transport)
