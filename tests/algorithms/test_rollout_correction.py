import math

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rollout_correction import rollout_weights


def weigh(
    ratios: list[float], method: str, *, level: str = "token", trajectories: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    rollout = torch.full([len(ratios)], -1.0, dtype=torch.float64)
    return rollout_weights(
        rollout + torch.tensor(ratios, dtype=torch.float64).log(),
        rollout,
        torch.tensor(trajectories or [0] * len(ratios), dtype=torch.long),
        method=method,  # type: ignore[arg-type]
        level=level,  # type: ignore[arg-type]
        min_ratio=0.5,
        max_ratio=2.0,
    )


@pytest.mark.parametrize(
    ("method", "weights", "num_cut"),
    [("truncate", [0.1, 0.9, 1.5, 2.0], 1), ("mask", [0.0, 0.9, 1.5, 0.0], 2)],
)
def test_ratios_within_the_bounds_stay_and_others_are_cut(method: str, weights: list[float], num_cut: int):
    weights_N, is_cut_N = weigh([0.1, 0.9, 1.5, 7.0], method)
    assert weights_N.tolist() == pytest.approx(weights)
    assert is_cut_N.sum().item() == num_cut


def test_weighted_mean_over_stale_samples_equals_the_mean_under_the_actor():
    """Importance sampling: the sum of rollout(x) w(x) f(x) over x equals that of actor(x) f(x) if no ratio is cut."""
    rollout, actor = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.25, 0.35])
    values = torch.tensor([1.0, -2.0, 5.0])
    weights_N, _ = rollout_weights(
        actor.log(), rollout.log(), torch.arange(3), method="truncate", level="token", min_ratio=0.5, max_ratio=2.0
    )
    assert (rollout * weights_N * values).sum().item() == pytest.approx((actor * values).sum().item())


def test_geometric_level_weighs_a_trajectory_by_its_geometric_mean():
    weights_N, is_cut_N = weigh([4.0, 1.0, 8.0, 8.0], "mask", level="geometric", trajectories=[0, 0, 1, 1])
    assert weights_N.tolist() == pytest.approx([2.0, 2.0, 0.0, 0.0])
    assert is_cut_N.sum().item() == 2


def test_trajectory_level_weighs_a_trajectory_by_the_product_of_its_tokens():
    weights_N, is_cut_N = weigh([3.0, 0.5, 1.5, 1.5], "mask", level="trajectory", trajectories=[0, 0, 1, 1])
    assert weights_N.tolist() == pytest.approx([1.5, 1.5, 0.0, 0.0])
    assert is_cut_N.sum().item() == 2


def test_the_bound_applies_to_the_product_over_a_trajectory_and_not_to_its_tokens():
    """Tokens at -25 and +25.5 nats make a trajectory at +0.5; 2000 tokens at 1 nat make one with a finite ratio."""
    near_N, _ = weigh([math.exp(-25), math.exp(25.5)], "truncate", level="trajectory")
    assert near_N.tolist() == pytest.approx([math.exp(0.5)] * 2)
    assert weigh([math.e] * 2000, "truncate", level="trajectory")[0].tolist() == [2.0] * 2000


@pytest.mark.parametrize("method", ["truncate", "mask"])
def test_a_token_with_almost_no_probability_in_the_engine_has_a_finite_weight(method: str):
    weights_N, _ = rollout_weights(
        torch.tensor([0.0]),
        torch.tensor([-1e30]),
        torch.tensor([0]),
        method=method,  # type: ignore[arg-type]
        level="token",
        min_ratio=0.5,
        max_ratio=2.0,
    )
    assert weights_N.tolist() == [2.0 if method == "truncate" else 0.0]


@pytest.mark.parametrize("level", ["token", "trajectory", "geometric"])
def test_no_tokens_give_no_weights(level: str):
    assert len(weigh([], "mask", level=level)[0]) == 0
