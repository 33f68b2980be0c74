import numpy as np
import pytest
import torch

from agentrl.algorithms.advantage import group_advantages


def test_advantages_are_numpys_standard_scores():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.25])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    advantages = group_advantages(torch.tensor(rewards), normalise_by_std=True)
    np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-12)


def test_without_normalisation_only_the_mean_is_taken_away():
    advantages = group_advantages(torch.tensor([1.0, 0.0, 0.0, 0.0]), normalise_by_std=False)
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_equal_rewards_and_singletons_have_advantage_exactly_zero(reward: float, size: int):
    assert group_advantages(torch.full((size,), reward), normalise_by_std=True).tolist() == [0.0] * size
