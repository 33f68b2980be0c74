"""PPO updates of recorded trajectories are the same on one rank and on several, with all roles in each process or apart."""

import random
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from agentrl.cluster.learner import Learner
from agentrl.cluster.model_worker import ModelWorker
from agentrl.cluster.spawn import ResourcePool, spawn
from agentrl.cluster.worker_group import WorkerGroup
from agentrl.config.algorithm_schema import AlgorithmSection, CriticSection, RewardModelSection
from agentrl.config.schema import ActorSection, ModelSection, RewardSection, RolloutSection, RunConfig
from agentrl.types import Group
from tests.training.training_cases import make_group, make_policy

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

ALL = "actor_ref_critic_reward"
LAYOUTS = {
    "two ranks": [(ALL, 2)],
    "each apart": [("actor", 1), ("ref", 1), ("critic", 2), ("reward", 1)],
}
VARIES = ("_s", "memory_bytes_max", "mfu", "computed_tokens", "attention_padding", "rank_imbalance")
"""With the machine; the last three with how the work is divided."""
NUM_STEPS = 3


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
            learning_rate=0.01,
            warmup_steps=0,
            max_tokens_per_micro_batch=64,
            mini_batches_per_step=2,
            num_threads_per_worker=1,
        ),
        critic=CriticSection(
            learning_rate=0.01, warmup_steps=0, max_tokens_per_micro_batch=64, mini_batches_per_step=2
        ),
        reward=RewardSection(weight=0.5, model=RewardModelSection(path=models.reward_model, activation="sigmoid")),
        algorithm=AlgorithmSection(
            advantage="gae",
            gae_lambda=0.95,
            kl_coefficient=0.1,
            kl_in="reward",
            kl_estimator="k1",
            kl_target=0.5,
            kl_horizon=20,
        ),
    )


def recorded(step: int) -> list[Group]:
    draws = random.Random(step)
    return [make_group(draws, f"p{index}", 3) for index in range(3)]


async def curve(config: RunConfig, layout: Sequence[tuple[str, int]]) -> list[dict[str, float]]:
    """Return the metrics of the updates."""
    with ExitStack() as running:

        def start() -> list[WorkerGroup]:
            groups = [start_role(config, role, num_ranks) for role, num_ranks in layout]
            for group in groups:
                running.callback(group.kill)
            return groups

        learner = Learner(config, start)
        await learner.start()
        return [await learner.update(recorded(step), step=step) for step in range(1, NUM_STEPS + 1)]


def start_role(config: RunConfig, role: str, num_ranks: int) -> WorkerGroup:
    pool = ResourcePool(num_processes=num_ranks, num_cpus=0.1)
    return WorkerGroup(role, spawn(ModelWorker, pool, config, role, max_concurrency=4))


@pytest.fixture(scope="module")
def reference_curve() -> list[list[dict[str, float]]]:
    """Of all roles in one process, filled by the first test that runs."""
    return []


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
async def test_layouts_have_the_same_losses(
    local_ray: Path, models: Models, layout: Sequence[tuple[str, int]], reference_curve: list[list[dict[str, float]]]
):
    config = config_of(models)
    if not reference_curve:
        reference_curve.append(await curve(config, [(ALL, 1)]))
    ours = await curve(config, layout)
    for step, theirs in zip(ours, reference_curve[0], strict=True):
        assert step.keys() == theirs.keys()
        for name in step:
            if not name.endswith(VARIES):
                assert step[name] == pytest.approx(theirs[name], rel=2e-3, abs=1e-5), name
    assert {name.partition("/")[0] for name in ours[0]} == {"actor", "critic", "reward_model"}
    assert ours[0]["actor/kl_coefficient"] == 0.1 != ours[2]["actor/kl_coefficient"]
