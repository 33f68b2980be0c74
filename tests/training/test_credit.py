"""What tokens are worth, on one rank and on two, beside the definition written out over the whole step."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from training_cases import make_group

from agentrl.algorithms.token_advantage import TokenAdvantage, TokenCredit
from agentrl.config.algorithm_schema import AlgorithmSection
from agentrl.training.credit import CreditAssignment
from agentrl.training.parallel import Parallel
from agentrl.training.sharding import plan_update
from agentrl.training.token_inputs import TokenInputs
from agentrl.types import Trajectory

GROUPS = [make_group(random.Random(5), f"p{index}", 4) for index in range(3)]
KL_IN_REWARD = AlgorithmSection(kl_coefficient=0.2, kl_in="reward", kl_estimator="k1")


def half_of_the_values(rewards_N, values_N, *, discount, gae_lambda) -> TokenCredit:
    return TokenCredit(advantages_N=values_N / 2, returns_N=rewards_N)


def a_nat_for_every_token(logprobs_N: torch.Tensor, other_logprobs_N: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(logprobs_N - other_logprobs_N)


mine = TokenAdvantage(estimate=half_of_the_values, uses_values=True)


class OneOfTwo:
    """A rank whose collectives are answered by what both ranks ask, recorded in a first round."""

    def __init__(self) -> None:
        self.asked: list[list[float]] = []
        self.answers: list[list[float]] | None = None

    def sum(self, values: Sequence[float]) -> list[float]:
        self.asked.append(list(values))
        return list(values) if self.answers is None else self.answers[len(self.asked) - 1]


def inputs_of(trajectory: Trajectory) -> TokenInputs:
    draws = np.random.default_rng(list(trajectory.trajectory_id.encode()))
    old, ref, values = draws.normal(size=(3, sum(trajectory.response_mask))).astype(np.float32)
    return TokenInputs(old_logprobs=old, ref_logprobs=ref, values=values)


INPUTS = {made.ref.trajectory_id: inputs_of(made.ref) for group in GROUPS for made in group.trajectories}


def advantages(algorithm: AlgorithmSection, *, num_ranks: int = 1) -> dict[str, list[float]]:
    """Advantages by trajectory. Ranks run one after another, often enough for each to know the sums of all."""
    shares = plan_update(GROUPS, step=1, num_ranks=num_ranks, num_mini_batches=1)
    ranks = [OneOfTwo() for _ in shares]
    credit = CreditAssignment(algorithm)
    found: dict[str, list[float]] = {}
    for _ in range(3):  # normalisation asks twice, and its second question depends on the first answer
        for rank, (shard, made) in zip(ranks, shares, strict=True):
            trajectories = [one.ref for one in made]
            rank.asked = []
            inputs = [INPUTS[one.trajectory_id] for one in trajectories]
            worth = credit.advantages(shard, trajectories, inputs, cast(Parallel, rank), kl_coefficient=0.2)
            found |= {one.trajectory_id: row.tolist() for one, row in zip(trajectories, worth, strict=True)}
        sums = [
            [float(sum(parts)) for parts in zip(*asked, strict=True)]
            for asked in zip(*(r.asked for r in ranks), strict=True)
        ]
        for rank in ranks:
            rank.answers = sums
    return found


def costs(trajectory: Trajectory) -> np.ndarray:
    given = INPUTS[trajectory.trajectory_id]
    assert given.old_logprobs is not None
    assert given.ref_logprobs is not None
    return 0.2 * (given.old_logprobs - given.ref_logprobs)


def test_a_group_baseline_is_over_rewards_less_their_divergence():
    ours = advantages(replace(KL_IN_REWARD, advantage="grpo"))
    for group in GROUPS:
        net = np.array([made.ref.reward - costs(made.ref).sum() for made in group.trajectories])
        expected = (net - net.mean()) / (net.std(ddof=1) + 1e-6)
        for made, value in zip(group.trajectories, expected, strict=True):
            assert ours[made.ref.trajectory_id] == pytest.approx([value] * made.ref.num_response_tokens, abs=1e-5)


def test_reinforce_plus_plus_baseline_normalises_over_the_tokens_of_the_step():
    ours = advantages(AlgorithmSection(advantage="reinforce_plus_plus_baseline"))
    made = [one.ref for group in GROUPS for one in group.trajectories]
    means = [np.mean(group.rewards) for group in GROUPS for _ in group.trajectories]
    centred = np.array([one.reward for one in made]) - means
    every = np.repeat(centred, [one.num_response_tokens for one in made])
    assert len({one.num_response_tokens for one in made}) > 1
    for trajectory, value in zip(made, (centred - every.mean()) / every.std(ddof=1), strict=True):
        assert ours[trajectory.trajectory_id] == pytest.approx([value] * trajectory.num_response_tokens, abs=1e-5)


def test_reinforce_plus_plus_normalises_the_rewards_to_go_of_all_tokens():
    ours = advantages(replace(KL_IN_REWARD, advantage="reinforce_plus_plus"))
    to_go = {}
    for made in (one for group in GROUPS for one in group.trajectories):
        rewards = -costs(made.ref)
        rewards[-1] += made.ref.reward
        to_go[made.ref.trajectory_id] = rewards[::-1].cumsum()[::-1]
    every = np.concatenate(list(to_go.values()))
    for name, values in to_go.items():
        assert ours[name] == pytest.approx((values - every.mean()) / every.std(ddof=1), abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "gae"])
def test_ranks_do_not_change_advantages(name: str):
    algorithm = replace(KL_IN_REWARD, advantage=name)
    alone, apart = advantages(algorithm), advantages(algorithm, num_ranks=3)
    assert alone.keys() == apart.keys()
    for key, row in alone.items():
        assert apart[key] == pytest.approx(row, abs=1e-5)


def test_dr_grpo_is_the_reward_less_the_mean_of_its_group():
    ours = advantages(AlgorithmSection(advantage="grpo", normalise_by_std=False))
    for group in GROUPS:
        mean = sum(group.rewards) / len(group.rewards)
        for made, reward in zip(group.trajectories, group.rewards, strict=True):
            assert ours[made.ref.trajectory_id] == pytest.approx([reward - mean] * made.ref.num_response_tokens)


def test_discount_and_lambda_reach_the_estimator():
    gae = AlgorithmSection(advantage="gae", normalise_by_std=False)
    plain, discounted, short_sighted = (
        advantages(algorithm) for algorithm in (gae, replace(gae, discount=0.9), replace(gae, gae_lambda=0.5))
    )
    assert plain != discounted != short_sighted != plain


def test_an_estimator_of_the_users_own_gets_the_values():
    ours = advantages(AlgorithmSection(advantage=f"{__name__}.mine", normalise_by_std=False))
    for name, row in ours.items():
        values = INPUTS[name].values
        assert values is not None
        assert row == pytest.approx((values / 2).tolist())


def test_an_estimator_of_the_divergence_of_the_users_own_is_what_the_reward_is_charged():
    algorithm = replace(KL_IN_REWARD, kl_estimator=f"{__name__}.a_nat_for_every_token", normalise_by_std=False)
    ours = advantages(replace(algorithm, advantage="reinforce_plus_plus"))
    for made in (one.ref for group in GROUPS for one in group.trajectories):
        num_left = np.arange(made.num_response_tokens, 0, -1)
        assert ours[made.trajectory_id] == pytest.approx(made.reward - 0.2 * num_left, abs=1e-5)


@pytest.mark.parametrize(
    ("algorithm", "missing", "message"),
    [
        (AlgorithmSection(advantage="gae"), {"values": None}, "needs values, and there are none"),
        (KL_IN_REWARD, {"old_logprobs": None}, "needs the log-probabilities of actor and reference"),
    ],
)
def test_what_is_missing_is_named(algorithm: AlgorithmSection, missing: dict[str, Any], message: str):
    [(shard, made)] = plan_update(GROUPS[:1], step=1, num_ranks=1, num_mini_batches=1)
    trajectories = [one.ref for one in made]
    inputs = [replace(INPUTS[one.trajectory_id], **missing) for one in trajectories]
    with pytest.raises(ValueError, match=message):
        CreditAssignment(algorithm).advantages(
            shard, trajectories, inputs, cast(Parallel, OneOfTwo()), kl_coefficient=0.2
        )


def test_the_estimates_are_float32():
    credit = CreditAssignment(AlgorithmSection(advantage="gae"))
    [(shard, made)] = plan_update(GROUPS, step=1, num_ranks=1, num_mini_batches=1)
    trajectories = [one.ref for one in made]
    inputs = [INPUTS[one.trajectory_id] for one in trajectories]
    worth = credit.advantages(shard, trajectories, inputs, cast(Parallel, OneOfTwo()), kl_coefficient=0.0)
    assert {row.dtype for row in worth} == {torch.float32}
