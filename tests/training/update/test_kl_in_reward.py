import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from agentrl.algorithms.kl_divergence import next_kl_coefficient
from agentrl.config.schema.algorithm import AlgorithmSection
from agentrl.config.schema.run import ActorSection, ModelSection, RolloutSection, RunConfig
from agentrl.training.actor import Actor
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.update_plan import plan_update
from tests.training.training_cases import alone, make_group

ACTOR = ActorSection(learning_rate=0.01, warmup_steps=0, max_tokens_per_micro_batch=64)
ALGORITHM = AlgorithmSection(advantage="reinforce_plus_plus", kl_coefficient=0.1, kl_in="reward", kl_estimator="k1")
GROUPS = [make_group(random.Random(1), f"p{index}", 4) for index in range(2)]


@pytest.fixture
def context() -> Iterator[Parallel]:
    parallel = Parallel(alone())
    yield parallel
    parallel.close()


def start(policy: ModelSection, context: Parallel, algorithm: AlgorithmSection) -> Actor:
    rollout = RolloutSection(max_response_tokens=64)
    actor = Actor(RunConfig(model=policy, actor=ACTOR, algorithm=algorithm, rollout=rollout), "actor")
    actor.setup(context)
    return actor


def update(actor: Actor, *, gap: float, num_mini_batches: int = 1) -> dict[str, float]:
    """Update with a reference that gives each token `gap` nats more than the actor."""
    [(shard, refs)] = plan_update(GROUPS, step=1, num_ranks=1, num_mini_batches=num_mini_batches)
    trajectories = [trajectory.ref for trajectory in refs]
    old = actor.logprobs(trajectories)
    inputs = [TokenInputs(old_logprobs=mine, ref_logprobs=mine + np.float32(gap)) for mine in old]
    return actor.update(shard, trajectories, inputs)


def test_the_reward_is_unchanged_if_actor_and_reference_agree(policy: ModelSection, context: Parallel):
    free = ALGORITHM.model_copy(update={"kl_coefficient": 0.0, "kl_in": "loss"})
    plain, agreeing = (update(start(policy, context, each), gap=0.0) for each in (free, ALGORITHM))
    assert agreeing["actor/loss"] == pytest.approx(plain["actor/loss"], abs=1e-6)
    assert agreeing["actor/grad_norm"] == pytest.approx(plain["actor/grad_norm"], rel=1e-5)


@pytest.mark.parametrize("num_mini_batches", [1, 2])
def test_the_divergence_is_measured_before_the_update_and_has_no_gradient(
    policy: ModelSection, context: Parallel, num_mini_batches: int
):
    # An equal cost per token changes advantages only through the lengths.
    algorithm = ALGORITHM.model_copy(update={"normalise_by_std": False})
    metrics = update(start(policy, context, algorithm), gap=0.5, num_mini_batches=num_mini_batches)
    assert metrics["actor/kl_reference"] == pytest.approx(-0.5, abs=1e-5)  # k1: actor minus reference
    assert metrics["actor/ratio_max"] == pytest.approx(1.0, abs=1e-4) or num_mini_batches > 1
    higher = update(start(policy, context, algorithm.model_copy(update={"kl_coefficient": 0.2})), gap=0.5)
    lower = update(start(policy, context, algorithm), gap=0.5)
    assert higher["actor/grad_norm"] != pytest.approx(lower["actor/grad_norm"], rel=1e-3)


def test_the_coefficient_adapts_and_is_part_of_the_checkpoint(policy: ModelSection, context: Parallel, tmp_path: Path):
    algorithm = ALGORITHM.model_copy(update={"kl_target": 1.0})
    actor = start(policy, context, algorithm)
    assert actor.kl_coefficient() == 0.1
    metrics = update(actor, gap=-0.5)
    num_tokens = sum(trajectory.ref.num_response_tokens for group in GROUPS for trajectory in group.trajectories)
    expected = next_kl_coefficient(0.1, divergence=0.5 * num_tokens / 8, target=1.0, num_trajectories=8)
    assert metrics["actor/kl_coefficient"] == 0.1
    assert actor.kl_coefficient() == pytest.approx(expected) == pytest.approx(0.1 * (1 + 0.2 * 8 / 10_000))
    actor.save(str(tmp_path / "actor"))
    actor.close()
    resumed = start(policy, context, algorithm)
    resumed.load(str(tmp_path / "actor"))
    assert resumed.kl_coefficient() == actor.kl_coefficient()


def test_a_fixed_coefficient_stays(policy: ModelSection, context: Parallel):
    actor = start(policy, context, ALGORITHM)
    update(actor, gap=-0.5)
    assert actor.kl_coefficient() == 0.1
