"""The control flow of one update over the roles that take part in it.

Roles may share processes or have their own, on as many ranks as they like. Those of one pool share its GPUs, and compute one
after another; those of different pools compute at the same time. Only references and metrics come here: what one role
computes about a trajectory stays where it was made until another asks for it.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentrl.cluster.handles import all_of, fetched
from agentrl.cluster.history import RunHistory
from agentrl.cluster.worker_group import WorkerGroup
from agentrl.config.layout import layout
from agentrl.config.schema import RunConfig
from agentrl.errors import CheckpointError, WorkerError
from agentrl.training.scores import score_metrics, with_scores
from agentrl.training.sharding import plan_scoring, plan_update
from agentrl.types import Group
from agentrl.weight_sync.base import Transport, WeightSource

References = dict[str, Any]
"""By the id of the trajectory: a reference to what a role said about it."""


class Learner:
    """Splits an update over roles and ranks, and calls them in order."""

    def __init__(
        self, config: RunConfig, launch: Callable[[], Sequence[WorkerGroup]], history: RunHistory | None = None
    ) -> None:
        """Start the processes.

        Args:
            config: the whole, checked tree.
            launch: gives the groups, each with all the components of its role; called again after one of them was lost.
            history: of the run so far; absent: it begins here.
        """
        self._config = config
        self._launch = launch
        self._groups: dict[str, WorkerGroup] = {}
        self._history = history or RunHistory()
        self._pools = {name: placement.pool for placement in layout(config) for name in placement.components}
        self._turns: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Of each pool: held while one of its roles computes."""
        self._spawn()

    @property
    def groups(self) -> Mapping[str, WorkerGroup]:
        """The group that holds each component; those that play together share one."""
        return self._groups

    async def start(self) -> None:
        """Form the process groups and load the models; the first that cannot ends the run."""
        await all_of(group.setup() for group in set(self._groups.values()))

    async def restart(self) -> None:
        """End all processes, and start new ones, which have the weights of the beginning until `load`."""
        for group in set(self._groups.values()):
            group.kill()
        self._history.num_restarts += 1
        self._spawn()
        await self.start()

    async def require_alive(self) -> None:
        """Return where every rank of every role has its process, as far as Ray knows.

        Raises:
            ModelDiedError: one has none.
        """
        await all_of(group.require_alive() for group in set(self._groups.values()))

    async def update(self, groups: Sequence[Group], *, step: int) -> dict[str, float]:
        """Update the policy, and the critic where there is one, with the selected groups.

        Returns:
            Metrics `actor/...`, `critic/...` and `reward_model/...`, reduced over the ranks.
        """
        kl_coefficient = None
        if self._config.has_reference:
            kl_coefficient = await self._groups["actor"].first("call", "actor", "kl_coefficient")
        questions = self._questions()
        answers = await all_of(self._score(component, method, groups) for component, method in questions.values())
        inputs = dict(zip(questions, answers, strict=True))
        groups, metrics = await self._with_scores(groups, inputs.pop("scores", None))
        updates = await all_of(
            self._update(component, groups, inputs, step=step, kl_coefficient=kl_coefficient)
            for component in reversed(self._trained)
        )
        for reported in updates:
            metrics |= reported
        return metrics | {"actor/restarts": float(self._history.num_restarts)}

    async def publish_weights(self, transport: Transport, receivers: Sequence[str]) -> WeightSource:
        """Have the current weights where engines can read them; of a stream, say what `send_weights` will send them.

        Args:
            transport: the way.
            receivers: of a stream: every process that takes it.
        """
        source = (await self._groups["actor"].all("call", "actor", "publish_weights", transport, receivers))[0]
        if source is None:
            raise WorkerError("actor 0: published no weights")
        return source

    async def send_weights(self, source: WeightSource) -> str | None:
        """Send a stream; returns who did not take it, or None where all did."""
        problems = await self._groups["actor"].all("call", "actor", "send_weights", source)
        return next((problem for problem in problems if problem), None)

    async def silent_ranks(self) -> list[str]:
        """Return which ranks of the actor do not even answer, by name."""
        return await self._groups["actor"].silent()

    async def weights_node(self) -> str:
        """Return on which Ray node `publish_weights` puts them."""
        return await self._groups["actor"].first("node_id")

    async def save(self, url: str) -> None:
        """Begin to write a sharded checkpoint into the folder `url`; returns when training may go on."""
        for name in self._trained:
            await self._groups[name].all("call", name, "save", f"{url}/{name}")

    async def saved(self) -> bool:
        """Return whether all ranks have written their parts.

        Raises:
            CheckpointError: one could not; training may go on.
        """
        parts = [part for name in self._trained for part in await self._groups[name].all("saved", name)]
        for part in parts:
            if isinstance(part, CheckpointError):
                raise part
        return all(parts)

    async def load(self, url: str) -> None:
        """Go on from the checkpoint in the folder `url`."""
        for name in self._trained:
            await self._groups[name].all("call", name, "load", f"{url}/{name}")

    async def reset_optimiser(self, *, step: int) -> None:
        """Begin with fresh optimisers, and with their warm-up, after update `step`."""
        for name in self._trained:
            await self._groups[name].all("call", name, "reset_optimiser", step)

    async def load_reference(self, url: str) -> None:
        """Take the policy of the checkpoint in the folder `url` as the reference, where there is one."""
        if "ref" in self._groups:
            await self._groups["ref"].all("call", "ref", "load", f"{url}/actor")

    @property
    def _trained(self) -> list[str]:
        """The components that have a state to keep."""
        return [name for name in ("actor", "critic") if name in self._groups]

    async def export(self, path: str) -> None:
        """Write the policy as a Hugging Face folder."""
        await self._groups["actor"].all("call", "actor", "export", path)

    def _spawn(self) -> None:
        self._groups = {name: group for group in self._launch() for name in group.name.split("_")}

    def _questions(self) -> dict[str, tuple[str, str]]:
        """Return what is asked before an update: component and method, by the field of `TokenInputs`, and `scores`."""
        questions = {}
        if "reward" in self._groups:
            questions["scores"] = ("reward", "score")
        if "ref" in self._groups:
            questions["ref_logprobs"] = ("ref", "logprobs")
        elif self._config.has_reference:
            questions["ref_logprobs"] = ("actor", "reference_logprobs")
        if self._config.algorithm.kl_in_reward:
            questions["old_logprobs"] = ("actor", "logprobs")
        if "critic" in self._groups:
            questions["values"] = ("critic", "values")
        return questions

    async def _with_scores(
        self, groups: Sequence[Group], references: References | None
    ) -> tuple[Sequence[Group], dict[str, float]]:
        """Return the groups with the reward model's say in their rewards, and what is reported of it."""
        if references is None:
            return groups, {}
        scores = dict(zip(references, await all_of(fetched(one) for one in references.values()), strict=True))
        reward = self._config.reward
        weighed = with_scores(groups, scores, reward_weight=reward.weight, score_weight=reward.model.weight)
        return weighed, score_metrics(groups, scores, self._config.algorithm.selection)

    async def _score(self, component: str, method: str, groups: Sequence[Group]) -> References:
        """Have a component say something about every trajectory."""
        made = [one for group in groups for one in group.trajectories]
        ranks = self._groups[component]
        # The reward model looks at the last token alone, and computes every trajectory by itself.
        shares_prefixes = self._config.actor.share_prefixes and component != "reward"
        async with self._turns[self._pools[component]]:
            results = await ranks.split(
                "score",
                component,
                method,
                items=[one.ref for one in made],
                shares=plan_scoring(groups, num_ranks=ranks.num_shares, share_prefixes=shares_prefixes),
            )
        return {one.summary.trajectory_id: result for one, result in zip(made, results, strict=True)}

    async def _update(
        self,
        component: str,
        groups: Sequence[Group],
        inputs: Mapping[str, References],
        *,
        step: int,
        kl_coefficient: float | None,
    ) -> dict[str, float]:
        """Update a component with what the others said (`inputs`, by fields of `TokenInputs`); returns its metrics."""
        ranks = self._groups[component]
        num_mini_batches = {
            "critic": self._config.critic.mini_batches_per_step,
            "actor": self._config.actor.mini_batches_per_step,
        }
        shares = plan_update(
            groups,
            step=step,
            num_ranks=ranks.num_shares,
            num_mini_batches=num_mini_batches[component],
            share_prefixes=self._config.actor.share_prefixes,
            kl_coefficient=kl_coefficient,
        )
        names = tuple(inputs)
        arguments = [
            (
                component,
                shard,
                names,
                *(one.ref for one in made),
                *(inputs[name][one.summary.trajectory_id] for name in names for one in made),
            )
            for shard, made in shares
        ]
        async with self._turns[self._pools[component]]:
            return (await ranks.each_share("update", arguments))[0]
