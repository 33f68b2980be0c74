import math

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.rollout_correction import RolloutWeights, rollout_mismatch, rollout_weights


def test_mismatch_is_zero_for_equal_policies_and_matches_the_closed_form_for_one_token():
    same = torch.tensor([-0.5, -2.0])
    assert rollout_mismatch(same, same).kl_sum.item() == 0.0
    off = rollout_mismatch(torch.tensor([math.log(0.6)]), torch.tensor([math.log(0.3)]))
    assert off.ratio_max.item() == pytest.approx(2.0)
    assert off.abs_difference_sum.item() == pytest.approx(math.log(2.0))
    assert off.kl_sum.item() == pytest.approx(2.0 - 1.0 - math.log(2.0))


def weigh(
    ratios: list[float], method: str, *, level: str = "token", trajectories: list[int] | None = None
) -> RolloutWeights:
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
    weighed = weigh([0.1, 0.9, 1.5, 7.0], method)
    assert weighed.weights_N.tolist() == pytest.approx(weights)
    assert weighed.num_cut.item() == num_cut


def test_weighted_mean_over_stale_samples_equals_the_mean_under_the_actor():
    """Importance sampling: the sum of rollout(x) w(x) f(x) over x equals that of actor(x) f(x) if no ratio is cut."""
    rollout, actor = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.4, 0.25, 0.35])
    values = torch.tensor([1.0, -2.0, 5.0])
    weighed = rollout_weights(
        actor.log(), rollout.log(), torch.arange(3), method="truncate", level="token", min_ratio=0.5, max_ratio=2.0
    )
    assert (rollout * weighed.weights_N * values).sum().item() == pytest.approx((actor * values).sum().item())


def test_geometric_level_weighs_a_trajectory_by_its_geometric_mean():
    weighed = weigh([4.0, 1.0, 8.0, 8.0], "mask", level="geometric", trajectories=[0, 0, 1, 1])
    assert weighed.weights_N.tolist() == pytest.approx([2.0, 2.0, 0.0, 0.0])
    assert weighed.num_cut.item() == 2


def test_trajectory_level_weighs_a_trajectory_by_the_product_of_its_tokens():
    weighed = weigh([3.0, 0.5, 1.5, 1.5], "mask", level="trajectory", trajectories=[0, 0, 1, 1])
    assert weighed.weights_N.tolist() == pytest.approx([1.5, 1.5, 0.0, 0.0])
    assert weighed.num_cut.item() == 2


def test_the_bound_applies_to_the_product_over_a_trajectory_and_not_to_its_tokens():
    """Tokens at -25 and +25.5 nats make a trajectory at +0.5; 2000 tokens at 1 nat make one with a finite ratio."""
    near = weigh([math.exp(-25), math.exp(25.5)], "truncate", level="trajectory")
    assert near.weights_N.tolist() == pytest.approx([math.exp(0.5)] * 2)
    assert weigh([math.e] * 2000, "truncate", level="trajectory").weights_N.tolist() == [2.0] * 2000


@pytest.mark.parametrize("method", ["truncate", "mask"])
def test_a_token_with_almost_no_probability_in_the_engine_has_a_finite_weight(method: str):
    weighed = rollout_weights(
        torch.tensor([0.0]),
        torch.tensor([-1e30]),
        torch.tensor([0]),
        method=method,  # type: ignore[arg-type]
        level="token",
        min_ratio=0.5,
        max_ratio=2.0,
    )
    assert weighed.weights_N.tolist() == [2.0 if method == "truncate" else 0.0]


@pytest.mark.parametrize("level", ["token", "trajectory", "geometric"])
def test_no_tokens_give_no_weights(level: str):
    nothing: Tensor = torch.empty(0)
    mismatch = rollout_mismatch(nothing, nothing)
    weighed = weigh([], "mask", level=level)
    assert (mismatch.kl_sum.item(), mismatch.ratio_max.item(), len(weighed.weights_N)) == (0, 0, 0)
