import pytest
import torch

from agentrl.algorithms.aggregation import AGGREGATIONS, trajectory_mean, trajectory_means, trajectory_sums

TRAJECTORY = torch.tensor([0, 0, 0, 1, 2, 2])
LOSS = torch.tensor([1.0, 2.0, 6.0, 5.0, 1.0, 2.0])


def aggregated(method: str) -> float:
    weights = AGGREGATIONS[method](TRAJECTORY, mean_length=2.0, max_length=10)
    return (weights * LOSS).mean().item()


def test_token_mean_is_the_mean_over_tokens():
    assert aggregated("token_mean") == pytest.approx(17.0 / 6)


def test_trajectory_mean_is_the_mean_of_the_means_of_trajectories():
    assert aggregated("trajectory_mean") == pytest.approx((3.0 + 5.0 + 1.5) / 3)


def test_fixed_length_divides_every_sum_by_the_same_length():
    assert aggregated("fixed_length") == pytest.approx((9.0 + 5.0 + 3.0) / 10 / 3)


def test_parts_of_a_batch_add_up_to_the_whole():
    """Micro-batches, with trajectories numbered from 0, weigh tokens as the whole batch does."""
    parts = [(TRAJECTORY[:4], LOSS[:4]), (TRAJECTORY[4:] - 2, LOSS[4:])]
    total = sum((trajectory_mean(t, mean_length=2.0, max_length=10) * loss).sum().item() for t, loss in parts)
    assert total / len(LOSS) == pytest.approx(aggregated("trajectory_mean"))


@pytest.mark.parametrize("method", AGGREGATIONS)
def test_no_tokens_give_no_weights(method: str):
    assert AGGREGATIONS[method](torch.empty(0, dtype=torch.long), mean_length=2.0, max_length=10).tolist() == []


def test_every_token_gets_the_mean_and_sum_of_its_trajectory():
    assert trajectory_means(LOSS, TRAJECTORY).tolist() == [3.0, 3.0, 3.0, 5.0, 1.5, 1.5]
    assert trajectory_sums(LOSS, TRAJECTORY).tolist() == [9.0, 9.0, 9.0, 5.0, 3.0, 3.0]
