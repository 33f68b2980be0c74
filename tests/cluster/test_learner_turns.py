"""Order in which roles compute, in virtual time and without a process."""

import asyncio
import random
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from agentrl import clock
from agentrl.cluster.learner import Learner
from agentrl.cluster.run_history import RunHistory
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.config.schema.algorithm import AlgorithmSection, RewardModelSection
from agentrl.config.schema.cluster import ClusterSection, PoolSection
from agentrl.config.schema.run import ModelSection, RewardSection, RunConfig
from agentrl.errors import ModelDiedError
from agentrl.simulation.virtual_time import run_in_virtual_time
from tests.training.training_cases import make_group

MODEL = ModelSection(path="")

ROLES = ("actor", "ref", "critic", "reward")
NEEDS = frozenset({"ref_logprobs", "old_logprobs", "values"})
Span = tuple[float, float]


class SlowGroup:
    """One rank that scores for a second, and updates for ten."""

    num_shares = 1

    def __init__(
        self, name: str, spans: dict[str, list[Span]], dies_at: str = "", needs: frozenset[str] = NEEDS
    ) -> None:
        self.name = name
        self.needs = needs
        self.spans = spans
        self.dies_at = dies_at

    async def setup(self) -> None: ...

    def kill(self) -> None: ...

    async def first(self, *call: Any) -> float:
        return 0.1

    async def split(self, *call: str, items: Sequence[Any], shares: Sequence[Any]) -> list[Any]:
        await self._compute(call[1], 1.0)
        return [_soon(0.5) for _ in items]

    async def each_share(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[dict[str, float]]:
        [(component, _, names, *_)] = arguments
        assert set(names) == self.needs
        await self._compute(component, 10.0)
        return [{f"{component}/loss": 1.0}]

    async def _compute(self, component: str, duration_s: float) -> None:
        began = clock.now()
        await asyncio.sleep(duration_s)
        if component == self.dies_at and duration_s > 1:
            raise ModelDiedError(f"{component} 0: its process died")
        self.spans.setdefault(component, []).append((began, clock.now()))


def _soon(value: float) -> "asyncio.Future[float]":
    future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def play(pool_of: Mapping[str, str], *, num_updates: int = 1, dies_at: str = "") -> dict[str, list[Span]]:
    """Return when each component computed, in seconds since the start."""
    config = RunConfig(
        model=MODEL,
        algorithm=AlgorithmSection(advantage="gae", kl_coefficient=0.1, kl_in="reward"),
        reward=RewardSection(model=RewardModelSection(path="a classifier")),
        cluster=ClusterSection(
            pools={name: PoolSection(num_processes=1) for name in {*pool_of.values(), "samplers"}},
            roles={**pool_of, "rollout": "samplers"},
        ),
    )
    spans: dict[str, list[Span]] = {}

    async def main() -> None:
        groups = [cast(WorkerGroup, SlowGroup(role, spans, dies_at)) for role in pool_of]
        learner = Learner(config, lambda: groups)
        for step in range(num_updates):
            await learner.update([make_group(random.Random(0), "p", 4)], step=step + 1)

    run_in_virtual_time(main())
    return spans


def test_roles_in_pools_of_their_own_compute_at_the_same_time():
    spans = play({role: role for role in ROLES})
    assert spans["reward"] == spans["ref"] == [(0.0, 1.0)]
    assert spans["actor"] == spans["critic"] == [(0.0, 1.0), (1.0, 11.0)]


def test_roles_of_one_pool_compute_one_after_another_whether_they_share_processes_or_not():
    for roles in (ROLES, ("actor_ref_critic_reward",)):
        spans = play(dict.fromkeys(roles, "all"), num_updates=2)
        all_spans = sorted(span for of_one in spans.values() for span in of_one)
        assert len(all_spans) == 12
        assert [began for began, _ in all_spans[1:]] == [ended for _, ended in all_spans[:-1]], "never two, and no gap"
        assert all_spans[-1][1] == 2 * 24.0


def test_the_actor_trains_on_scores_that_it_need_not_wait_for_in_its_own_pool():
    spans = play({"actor_critic": "policy", "ref_reward": "aside"})
    assert spans["reward"] + spans["ref"] == [(0.0, 1.0), (1.0, 2.0)]
    assert spans["critic"] == [(1.0, 2.0), (2.0, 12.0)]
    assert spans["actor"] == [(0.0, 1.0), (12.0, 22.0)]


def test_a_death_in_one_pool_ends_the_update_in_all_of_them():
    with pytest.raises(ModelDiedError, match="critic 0"):
        play({role: role for role in ROLES}, dies_at="critic")


def test_restarts_are_counted_through_all_stages_of_a_run():
    config, history = RunConfig(model=MODEL), RunHistory()

    async def stage(*, restarts: bool) -> float:
        learner = Learner(config, lambda: [cast(WorkerGroup, SlowGroup("actor", {}, needs=frozenset()))], history)
        if restarts:
            await learner.restart()
        return (await learner.update([make_group(random.Random(0), "p", 4)], step=1))["actor/restarts"]

    async def main() -> list[float]:
        return [await stage(restarts=True), await stage(restarts=False), await stage(restarts=True)]

    assert run_in_virtual_time(main()) == [1, 1, 2]
