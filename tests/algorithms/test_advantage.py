import numpy as np
import pytest
import torch

from agentrl.algorithms.advantage import ADVANTAGES, grpo, reinforce_plus_plus_baseline, rloo

GROUPS = [torch.tensor([1.0, 0.0, 0.0, 1.0, 0.25]), torch.tensor([0.0, 0.0, 1.0])]


def test_grpo_matches_numpys_standard_scores():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.25])
    expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-6)
    [advantages] = grpo([torch.tensor(rewards)], normalise_by_std=True)
    np.testing.assert_allclose(advantages.numpy(), expected, atol=1e-12)


def test_without_normalisation_only_the_mean_is_subtracted():
    [advantages] = grpo([torch.tensor([1.0, 0.0, 0.0, 0.0])], normalise_by_std=False)
    assert advantages.tolist() == [0.75, -0.25, -0.25, -0.25]


def test_rloo_subtracts_the_mean_of_the_others():
    for rewards, advantages in zip(GROUPS, rloo(GROUPS, normalise_by_std=False), strict=True):
        values = rewards.tolist()
        expected = [value - (sum(values) - value) / (len(values) - 1) for value in values]
        assert advantages.tolist() == pytest.approx(expected)


def test_rloo_normalises_over_the_step_to_mean_0_and_deviation_1():
    advantages = torch.cat(rloo(GROUPS, normalise_by_std=True))
    assert advantages.mean().item() == pytest.approx(0.0, abs=1e-6)
    assert advantages.std().item() == pytest.approx(1.0, abs=1e-5)


def test_rloo_keeps_exact_zeros_of_equal_reward_groups_when_normalising():
    singleton, equal = torch.tensor([1.0]), torch.full((3,), 0.3)
    for mixed in ([1.0, 0.0, 0.0], [0.1, 0.7, 0.2], [0.9, 0.9, 0.9, 0.2, 0.4, 0.3, 0.1]):
        alone, together, expected = rloo([singleton, equal, torch.tensor(mixed)], normalise_by_std=True)
        assert (alone.tolist(), together.tolist()) == ([0.0], [0.0, 0.0, 0.0])
        centred = np.concatenate([np.zeros(4), (np.array(mixed) - np.mean(mixed)) * len(mixed) / (len(mixed) - 1)])
        standard = (centred - centred.mean()) / (centred.std(ddof=1) + 1e-6)
        np.testing.assert_allclose(expected.numpy(), standard[4:], atol=1e-6)


def test_reinforce_plus_plus_keeps_proportions_between_groups_and_grpo_does_not():
    wide, narrow = torch.tensor([1.0, 0.0]), torch.tensor([0.6, 0.4])
    ours, theirs = (
        estimate([wide, narrow], normalise_by_std=True) for estimate in (reinforce_plus_plus_baseline, grpo)
    )
    assert (ours[0][0] / ours[1][0]).item() == pytest.approx(5.0)
    assert (theirs[0][0] / theirs[1][0]).item() == pytest.approx(1.0, rel=1e-4)


@pytest.mark.parametrize("name", ADVANTAGES)
def test_no_groups_give_no_advantages(name: str):
    assert ADVANTAGES[name]([], normalise_by_std=True) == []


@pytest.mark.parametrize("name", ADVANTAGES)
@pytest.mark.parametrize("reward", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_equal_rewards_and_singletons_have_advantage_exactly_zero(name: str, reward: float, size: int):
    [advantages] = ADVANTAGES[name]([torch.full((size,), reward)], normalise_by_std=True)
    assert advantages.tolist() == [0.0] * size
