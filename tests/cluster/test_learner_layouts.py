"""PPO updates of recorded trajectories: the same on one rank and on several, with all roles together or apart, and resumed."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from agentrl.cluster.learner import Learner
from agentrl.cluster.ray.spawn import ResourcePool, spawn
from agentrl.cluster.workers.model_worker import ModelWorker
from agentrl.cluster.workers.worker_group import WorkerGroup
from agentrl.config.schema.algorithm import AlgorithmSection, CriticSection, RewardModelSection
from agentrl.config.schema.run import ActorSection, ModelSection, RewardSection, RolloutSection, RunConfig
from agentrl.types import Group
from tests.training.training_cases import make_group, make_policy

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1200)]

ALL = "actor_ref_critic_reward"
LAYOUTS = {
    "two ranks": ([(ALL, 2)], 1),
    "each apart": ([("actor", 1), ("ref", 1), ("critic", 2), ("reward", 1)], 1),
    "two ranks for each row": ([(ALL, 2)], 2),
}
"""Roles with their ranks, and the ranks that compute each row together."""
VARIES = ("_s", "memory_bytes_max", "mfu", "computed_tokens", "rank_imbalance")
"""Metrics that vary with the machine; the last three with the division of the work."""
STEPS = (1, 2, 3)


@dataclass
class Models:
    policy: str
    reward_model: str


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    policy = make_policy(tmp_path_factory.mktemp("policy"))
    torch.manual_seed(3)
    classifier = AutoModelForSequenceClassification.from_pretrained(policy, num_labels=1)
    folder = tmp_path_factory.mktemp("reward_model")
    classifier.save_pretrained(folder)
    return Models(policy=str(policy), reward_model=str(folder))


def config_of(models: Models) -> RunConfig:
    return RunConfig(
        model=ModelSection(path=models.policy),
        rollout=RolloutSection(max_response_tokens=64),
        actor=ActorSection(
            num_workers=4,  # the ranks of the widest layout share the cores
            learning_rate=0.01,
            warmup_steps=0,
            max_tokens_per_micro_batch=64,
            mini_batches_per_step=2,
        ),
        critic=CriticSection(learning_rate=0.01),
        reward=RewardSection(weight=0.5, model=RewardModelSection(path=models.reward_model, activation="sigmoid")),
        algorithm=AlgorithmSection(
            advantage="gae",
            gae_lambda=0.95,
            kl_coefficient=0.1,
            kl_in="reward",
            kl_estimator="k1",
            kl_target=0.5,
        ),
    )


def recorded(step: int) -> list[Group]:
    draws = random.Random(step)
    return [make_group(draws, f"p{index}", 3) for index in range(3)]


@asynccontextmanager
async def running(config: RunConfig, layout: Sequence[tuple[str, int]]) -> AsyncIterator[Learner]:
    with ExitStack() as processes:

        def start() -> list[WorkerGroup]:
            groups = [start_role(config, role, num_ranks) for role, num_ranks in layout]
            for group in groups:
                processes.callback(group.kill)
            return groups

        learner = Learner(config, start)
        await learner.start()
        yield learner


async def curve(learner: Learner, *steps: int, checkpoints: Mapping[int, Path] | None = None) -> list[dict[str, float]]:
    """Make updates, and a checkpoint behind the training after those that `checkpoints` names; return their metrics."""
    metrics = []
    for step in steps:
        metrics.append(await learner.update(recorded(step), step=step))
        if checkpoints and step in checkpoints:
            checkpoints[step].mkdir()
            await learner.save(str(checkpoints[step]))
    while True:
        if await learner.saved():
            return metrics
        await asyncio.sleep(0.05)


def start_role(config: RunConfig, role: str, num_ranks: int) -> WorkerGroup:
    pool = ResourcePool(num_processes=num_ranks, num_cpus=0.1)
    ranks = spawn(ModelWorker, pool, config, role, max_concurrency=4)
    return WorkerGroup(role, ranks, ranks_per_share=config.actor.sequence_parallel_size)


@dataclass
class Uninterrupted:
    """The run of all roles in one process, made by the first test that asks for it."""

    config: RunConfig
    after_first_step: Path
    metrics: list[dict[str, float]] = field(default_factory=list)

    async def curve(self) -> list[dict[str, float]]:
        if not self.metrics:
            async with running(self.config, [(ALL, 1)]) as learner:
                self.metrics = await curve(learner, *STEPS, checkpoints={1: self.after_first_step})
        return self.metrics


@pytest.fixture(scope="module")
def uninterrupted(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    return Uninterrupted(config_of(models), tmp_path_factory.mktemp("uninterrupted") / "step_1")


def assert_close(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]]) -> None:
    for step, other in zip(ours, theirs, strict=True):
        assert step.keys() == other.keys()
        for name in step:
            if not name.endswith(VARIES):
                assert step[name] == pytest.approx(other[name], rel=2e-3, abs=1e-5), name


@pytest.mark.parametrize(("layout", "ranks_per_row"), LAYOUTS.values(), ids=LAYOUTS.keys())
async def test_layouts_have_the_same_losses(
    local_ray: Path, uninterrupted: Uninterrupted, layout: Sequence[tuple[str, int]], ranks_per_row: int
):
    expected, config = await uninterrupted.curve(), uninterrupted.config
    actor = config.actor.model_copy(update={"sequence_parallel_size": ranks_per_row})
    async with running(config.model_copy(update={"actor": actor}), layout) as learner:
        ours = await curve(learner, *STEPS)
    assert_close(ours, expected)
    assert {name.partition("/")[0] for name in ours[0]} == {"actor", "critic", "reward_model"}
    assert ours[0]["actor/kl_coefficient"] == 0.1 != ours[2]["actor/kl_coefficient"]


async def test_four_ranks_have_the_losses_of_one_and_checkpoints_go_from_one_to_four_and_back(
    local_ray: Path, uninterrupted: Uninterrupted, tmp_path: Path
):
    expected = await uninterrupted.curve()
    async with running(uninterrupted.config, [(ALL, 4)]) as four:
        assert_close(await curve(four, *STEPS, checkpoints={2: tmp_path / "of_four"}), expected)
        await four.load(str(uninterrupted.after_first_step))
        assert_close(await curve(four, *STEPS[1:]), expected[1:])
    async with running(uninterrupted.config, [(ALL, 1)]) as single:
        await single.load(str(tmp_path / "of_four"))
        assert_close(await curve(single, *STEPS[2:]), expected[2:])
        # The critic, the optimisers and the adapted coefficient are those of the checkpoint to the bit, whatever came before.
        await single.load(str(uninterrupted.after_first_step))
        resumed = await curve(single, *STEPS[1:])
    for step, other in zip(resumed, expected[1:], strict=True):
        same_machine = [name for name in step if not name.endswith(VARIES)]
        assert {name: step[name] for name in same_machine} == {name: other[name] for name in same_machine}
    assert resumed[0]["actor/kl_coefficient"] != 0.1, "it had adapted before the checkpoint"
