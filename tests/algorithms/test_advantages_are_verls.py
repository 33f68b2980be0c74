"""Token-level advantages, value loss and KL beside verl's own code; `record_verl` says how its values were made."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentrl.algorithms.kl_control import next_kl_coefficient
from agentrl.algorithms.kl_divergence import kl_estimate
from agentrl.algorithms.token_advantage import TOKEN_ADVANTAGES, normalised, token_rewards
from agentrl.algorithms.value_loss import value_loss

VERL = json.loads(Path(__file__).with_name("verl_values.json").read_text())
MASK = torch.tensor(VERL["mask"]).bool()


def recorded(name: str) -> list[Tensor]:
    """Each trajectory's sampled tokens."""
    return [row[sampled] for row, sampled in zip(torch.tensor(VERL[name], dtype=torch.float64), MASK, strict=True)]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimates_of_the_divergence_are_verls(estimator):
    ours = kl_estimate(torch.cat(recorded("old")), torch.cat(recorded("ref")), estimator)
    torch.testing.assert_close(ours, torch.cat(recorded(estimator)))


@pytest.mark.parametrize("name", ["gae", "reinforce_plus_plus"])
def test_advantages_with_the_divergence_in_the_reward_are_verls(name: str):
    credits = []
    for reward, old, ref, values in zip(
        VERL["rewards"], recorded("old"), recorded("ref"), recorded("values"), strict=True
    ):
        rewards_N = token_rewards(reward, kl_estimate(old, ref, "k1"), kl_coefficient=0.1)
        credits.append(TOKEN_ADVANTAGES[name].estimate(rewards_N, values, discount=0.97, gae_lambda=0.9))
    advantages = normalised([credit.advantages_N for credit in credits], add_up=lambda numbers: numbers)
    torch.testing.assert_close(torch.cat(advantages), torch.cat(recorded(name)).float(), rtol=1e-5, atol=1e-5)
    if name == "gae":
        torch.testing.assert_close(torch.cat([one.returns_N for one in credits]), torch.cat(recorded("returns")))


def test_the_clipped_value_loss_is_verls():
    new, old, returns = (torch.cat(recorded(name)) for name in ("new_values", "values", "returns"))
    ours = value_loss(new, old, returns, clip=0.2)
    assert ours.loss_N.mean().item() == pytest.approx(VERL["value_loss"], rel=1e-6)
    assert ours.clipped_N.double().mean().item() == pytest.approx(VERL["value_clipped"], rel=1e-6)
    assert 0 < VERL["value_clipped"] < 1


def test_the_controller_of_the_coefficient_is_verls():
    coefficient, ours = 0.1, []
    for divergence in (9.0, 6.3, 2.0):
        coefficient = next_kl_coefficient(
            coefficient, divergence=divergence, target=6.0, num_trajectories=64, horizon=1000
        )
        ours.append(coefficient)
    assert ours == pytest.approx(VERL["kl_coefficients"])
    assert ours[0] < ours[1] > ours[2]


@pytest.mark.parametrize(("divergence", "factor"), [(0.0, 0.8), (100.0, 1.2)])
def test_a_step_of_more_trajectories_than_the_horizon_does_not_turn_the_coefficient_negative(
    divergence: float, factor: float
):
    after = next_kl_coefficient(0.01, divergence=divergence, target=6.0, num_trajectories=8192, horizon=1000)
    assert after == pytest.approx(0.01 * factor)


def test_a_divergence_that_is_no_number_ends_the_update():
    with pytest.raises(FloatingPointError, match="nan"):
        next_kl_coefficient(0.01, divergence=float("nan"), target=6.0, num_trajectories=8, horizon=1000)
