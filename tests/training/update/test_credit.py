"""Advantages on one rank and on several, compared with the definition over the whole step."""

import random
from collections.abc import Sequence
from typing import cast

import numpy as np
import pytest
import torch

from agentrl.algorithms.token_advantage import TokenAdvantage, TokenCredit
from agentrl.config.schema.algorithm import AlgorithmSection
from agentrl.errors import ConfigError
from agentrl.training.packing.sequences import TokenInputs
from agentrl.training.parallel import Parallel
from agentrl.training.update.credit import CreditAssignment
from agentrl.training.update.update_plan import plan_update
from agentrl.types import Trajectory
from tests.training.training_cases import make_group

GROUPS = [make_group(random.Random(5), f"p{index}", 4) for index in range(3)]
KL_IN_REWARD = AlgorithmSection(kl_coefficient=0.2, kl_in="reward", kl_estimator="k1")


def half_of_the_values(rewards_N, values_N, *, discount, gae_lambda) -> TokenCredit:
    return TokenCredit(advantages_N=values_N / 2, returns_N=rewards_N)


def a_nat_for_every_token(logprobs_N: torch.Tensor, other_logprobs_N: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(logprobs_N - other_logprobs_N)


def one_credit(rewards_N, values_N, *, discount, gae_lambda) -> TokenCredit:
    return TokenCredit(advantages_N=rewards_N.sum()[None], returns_N=rewards_N)


def short_returns(rewards_N, values_N, *, discount, gae_lambda) -> TokenCredit:
    return TokenCredit(advantages_N=rewards_N, returns_N=rewards_N[1:])


def advantages_of_one_group(groups, *, normalise_by_std) -> list[torch.Tensor]:
    return groups[:1]


def advantages_twice(groups, *, normalise_by_std) -> list[torch.Tensor]:
    return [rewards_G.repeat(2) for rewards_G in groups]


def advantages_as_lists(groups, *, normalise_by_std) -> list[list[float]]:
    return [rewards_G.tolist() for rewards_G in groups]


mine = TokenAdvantage(estimate=half_of_the_values, uses_values=True)
summed = TokenAdvantage(estimate=one_credit, uses_values=False)
without_first = TokenAdvantage(estimate=short_returns, uses_values=True)


class RecordedRank:
    """A rank whose collectives return sums recorded in an earlier round."""

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


INPUTS = {
    trajectory.ref.trajectory_id: inputs_of(trajectory.ref) for group in GROUPS for trajectory in group.trajectories
}


def advantages(algorithm: AlgorithmSection, *, num_ranks: int = 1) -> dict[str, list[float]]:
    """Return advantages by trajectory; ranks run one after another, repeated until each knows all sums."""
    shares = plan_update(GROUPS, step=1, num_ranks=num_ranks, num_mini_batches=1)
    ranks = [RecordedRank() for _ in shares]
    credit = CreditAssignment(algorithm)
    rows: dict[str, list[float]] = {}
    for _ in range(3):  # normalisation reduces twice, and the second depends on the first
        for rank, (shard, refs) in zip(ranks, shares, strict=True):
            trajectories = [trajectory.ref for trajectory in refs]
            rank.asked = []
            inputs = [INPUTS[trajectory.trajectory_id] for trajectory in trajectories]
            worth = credit.advantages(shard, trajectories, inputs, cast(Parallel, rank), kl_coefficient=0.2)
            rows |= {
                trajectory.trajectory_id: row.tolist() for trajectory, row in zip(trajectories, worth, strict=True)
            }
        sums = [
            [float(sum(parts)) for parts in zip(*asked, strict=True)]
            for asked in zip(*(r.asked for r in ranks), strict=True)
        ]
        for rank in ranks:
            rank.answers = sums
    return rows


def costs(trajectory: Trajectory) -> np.ndarray:
    inputs = INPUTS[trajectory.trajectory_id]
    assert inputs.old_logprobs is not None
    assert inputs.ref_logprobs is not None
    return 0.2 * (inputs.old_logprobs - inputs.ref_logprobs)


def test_a_group_baseline_uses_rewards_minus_divergence():
    ours = advantages(KL_IN_REWARD.model_copy(update={"advantage": "grpo"}))
    for group in GROUPS:
        net = np.array([trajectory.ref.reward - costs(trajectory.ref).sum() for trajectory in group.trajectories])
        expected = (net - net.mean()) / (net.std(ddof=1) + 1e-6)
        for trajectory, value in zip(group.trajectories, expected, strict=True):
            assert ours[trajectory.ref.trajectory_id] == pytest.approx(
                [value] * trajectory.ref.num_response_tokens, abs=1e-5
            )


def test_reinforce_plus_plus_baseline_normalises_over_the_tokens_of_the_step():
    ours = advantages(AlgorithmSection(advantage="reinforce_plus_plus_baseline"))
    trajectories = [trajectory.ref for group in GROUPS for trajectory in group.trajectories]
    means = [np.mean(group.rewards) for group in GROUPS for _ in group.trajectories]
    centred = np.array([trajectory.reward for trajectory in trajectories]) - means
    every = np.repeat(centred, [trajectory.num_response_tokens for trajectory in trajectories])
    assert len({trajectory.num_response_tokens for trajectory in trajectories}) > 1
    for trajectory, value in zip(trajectories, (centred - every.mean()) / every.std(ddof=1), strict=True):
        assert ours[trajectory.trajectory_id] == pytest.approx([value] * trajectory.num_response_tokens, abs=1e-5)


def test_reinforce_plus_plus_normalises_the_rewards_to_go_of_all_tokens():
    ours = advantages(KL_IN_REWARD.model_copy(update={"advantage": "reinforce_plus_plus"}))
    to_go = {}
    for trajectory in (each for group in GROUPS for each in group.trajectories):
        rewards = -costs(trajectory.ref)
        rewards[-1] += trajectory.ref.reward
        to_go[trajectory.ref.trajectory_id] = rewards[::-1].cumsum()[::-1]
    every = np.concatenate(list(to_go.values()))
    for name, values in to_go.items():
        assert ours[name] == pytest.approx((values - every.mean()) / every.std(ddof=1), abs=1e-4)


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus_baseline", "reinforce_plus_plus", "gae"])
def test_ranks_do_not_change_advantages(name: str):
    algorithm = KL_IN_REWARD.model_copy(update={"advantage": name})
    alone, apart = advantages(algorithm), advantages(algorithm, num_ranks=3)
    assert alone.keys() == apart.keys()
    for key, row in alone.items():
        assert apart[key] == pytest.approx(row, abs=1e-5)


def test_dr_grpo_subtracts_the_group_mean_from_the_reward():
    ours = advantages(AlgorithmSection(advantage="grpo", normalise_by_std=False))
    for group in GROUPS:
        mean = sum(group.rewards) / len(group.rewards)
        for trajectory, reward in zip(group.trajectories, group.rewards, strict=True):
            assert ours[trajectory.ref.trajectory_id] == pytest.approx(
                [reward - mean] * trajectory.ref.num_response_tokens
            )


def test_discount_and_lambda_reach_the_estimator():
    gae = AlgorithmSection(advantage="gae", normalise_by_std=False)
    plain, discounted, short_sighted = (
        advantages(algorithm)
        for algorithm in (gae, gae.model_copy(update={"discount": 0.9}), gae.model_copy(update={"gae_lambda": 0.5}))
    )
    assert plain != discounted != short_sighted != plain


def test_a_custom_estimator_gets_the_values():
    ours = advantages(AlgorithmSection(advantage=f"{__name__}.mine", normalise_by_std=False))
    for name, row in ours.items():
        values = INPUTS[name].values
        assert values is not None
        assert row == pytest.approx((values / 2).tolist())


@pytest.mark.parametrize(
    ("name", "error", "problem"),
    [
        ("summed", ConfigError, r"`algorithm\.advantage`: `.*summed` gave a tensor of shape \[1\]"),
        ("without_first", ConfigError, r"`algorithm\.advantage`: `.*without_first` gave a tensor of shape"),
        ("advantages_twice", ConfigError, r"gave a tensor of shape \[8\]; it must be a tensor of shape \[4\]"),
        ("advantages_as_lists", ConfigError, r"gave a list; it must be a tensor of shape \[4\]"),
        ("advantages_of_one_group", ConfigError, r"gave 1 tensors for \d groups; return one for each"),
    ],
)
def test_an_invalid_result_of_a_custom_estimator_is_refused(name: str, error: type[Exception], problem: str):
    with pytest.raises(error, match=problem):
        advantages(AlgorithmSection(advantage=f"{__name__}.{name}"))


def test_a_custom_kl_estimator_is_used_in_the_reward():
    algorithm = KL_IN_REWARD.model_copy(
        update={"kl_estimator": f"{__name__}.a_nat_for_every_token", "normalise_by_std": False}
    )
    ours = advantages(algorithm.model_copy(update={"advantage": "reinforce_plus_plus"}))
    for trajectory in (each.ref for group in GROUPS for each in group.trajectories):
        num_left = np.arange(trajectory.num_response_tokens, 0, -1)
        assert ours[trajectory.trajectory_id] == pytest.approx(trajectory.reward - 0.2 * num_left, abs=1e-5)


def test_advantages_are_float32():
    credit = CreditAssignment(AlgorithmSection(advantage="gae"))
    [(shard, refs)] = plan_update(GROUPS, step=1, num_ranks=1, num_mini_batches=1)
    trajectories = [trajectory.ref for trajectory in refs]
    inputs = [INPUTS[trajectory.trajectory_id] for trajectory in trajectories]
    worth = credit.advantages(shard, trajectories, inputs, cast(Parallel, RecordedRank()), kl_coefficient=0.0)
    assert {row.dtype for row in worth} == {torch.float32}
