import random

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.token_advantage import discounted_returns, gae, normalised, token_rewards
from agentrl.algorithms.value_loss import value_loss

REWARDS, VALUES = torch.tensor([0.1, 0.0, -0.2, 1.0]), torch.tensor([0.5, 0.4, 0.7, 0.2])


def test_gae_matches_equation_16():
    discount, gae_lambda = 0.9, 0.8
    r, v = REWARDS.tolist(), [*VALUES.tolist(), 0.0]
    deltas = [r[t] + discount * v[t + 1] - v[t] for t in range(4)]
    expected = [sum((discount * gae_lambda) ** (k - t) * deltas[k] for k in range(t, 4)) for t in range(4)]
    credit = gae(REWARDS, VALUES, discount=discount, gae_lambda=gae_lambda)
    assert credit.advantages_N.tolist() == pytest.approx(expected, abs=1e-6)
    assert credit.returns_N.tolist() == pytest.approx([e + w for e, w in zip(expected, v, strict=False)], abs=1e-6)


def test_with_lambda_1_returns_are_the_discounted_rewards():
    ours = gae(REWARDS, VALUES, discount=0.9, gae_lambda=1.0).returns_N
    torch.testing.assert_close(ours, discounted_returns(REWARDS, discount=0.9).returns_N)


def test_with_lambda_0_advantages_are_one_step_errors():
    ours = gae(REWARDS, VALUES, discount=0.9, gae_lambda=0.0).advantages_N
    torch.testing.assert_close(ours, REWARDS + 0.9 * torch.tensor([0.4, 0.7, 0.2, 0.0]) - VALUES)


def test_gae_without_a_value_for_every_token_is_refused():
    with pytest.raises(ValueError, match="4 sampled tokens needs as many values, and has none"):
        gae(REWARDS, None, discount=1.0, gae_lambda=1.0)
    with pytest.raises(ValueError, match="and has 3"):
        gae(REWARDS, VALUES[:3], discount=1.0, gae_lambda=1.0)


def test_the_last_token_gets_the_reward_and_every_token_pays_for_divergence():
    rewards_N = token_rewards(2.0, torch.tensor([0.5, -1.0, 0.0]), kl_coefficient=0.1)
    assert rewards_N.tolist() == pytest.approx([-0.05, 0.1, 2.0])


def test_a_trajectory_without_sampled_tokens_has_no_rewards_and_no_advantages():
    empty = token_rewards(1.0, torch.zeros(0), kl_coefficient=0.1)
    assert len(gae(empty, torch.zeros(0), discount=1.0, gae_lambda=1.0).advantages_N) == 0


def test_normalisation_over_two_ranks_equals_that_of_one():
    draws = random.Random(0)
    advantages = [torch.tensor([draws.gauss(3, 2) for _ in range(size)]) for size in (5, 1, 7, 4)]
    together = normalised(advantages, add_up=lambda numbers: numbers)
    every = torch.cat(advantages)
    torch.testing.assert_close(torch.cat(together), (every - every.mean()) / every.std())
    # The two calls of each rank, answered with the sums of both.
    sums = [[17.0, every.double().sum().item()], [(every.double() - every.double().mean()).square().sum().item()]]
    apart: list[Tensor] = []
    for share in (advantages[:1], advantages[1:]):
        replies = iter(sums)
        apart += normalised(share, add_up=lambda _, replies=replies: next(replies))
    torch.testing.assert_close(torch.cat(apart), torch.cat(together))


def test_a_rank_without_trajectories_takes_part_in_the_normalisation():
    calls = []

    def add_up(numbers: list[float]) -> list[float]:
        calls.append(numbers)
        return numbers

    assert normalised([], add_up=add_up) == []
    assert calls == [[0.0, 0.0], [0.0]]


def test_a_value_that_moved_beyond_the_clip_towards_its_return_has_no_gradient():
    values = torch.tensor([1.0, 1.0, 1.0], requires_grad=True)
    loss, is_clipped = value_loss(values, torch.tensor([0.5, 0.9, 0.5]), torch.tensor([0.0, 0.0, 2.0]), clip=0.2)
    loss.sum().backward()
    # The second moved 0.1. The others moved 0.5, the first away from its return, so it keeps its gradient.
    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx([1.0, 1.0, 0.0])
    assert is_clipped.tolist() == [False, False, True]


def test_without_a_clip_the_loss_is_half_the_squared_error():
    loss, _ = value_loss(torch.tensor([1.0, 3.0]), torch.zeros(2), torch.tensor([0.0, 1.0]), clip=0.0)
    assert loss.tolist() == [0.5, 2.0]


def test_a_value_that_moved_less_than_the_clip_is_never_counted_as_clipped():
    draws = torch.Generator().manual_seed(0)
    old, new, returns = (torch.rand(10_000, generator=draws) for _ in range(3))
    _, is_clipped = value_loss(0.4 * new - 0.2, 0.4 * old - 0.2, returns, clip=0.5)
    assert not is_clipped.any()
