"""The adaptive coefficient compared with verl's values (`record_verl`)."""

import json
from pathlib import Path

import pytest

from agentrl.algorithms.kl_divergence import next_kl_coefficient

VERL = json.loads(Path(__file__).with_name("verl_values.json").read_text())


def test_the_adaptive_coefficient_matches_verl():
    coefficient, ours = 0.1, []
    for divergence in (9.0, 6.3, 2.0):
        coefficient = next_kl_coefficient(
            coefficient, divergence=divergence, target=6.0, num_trajectories=64, horizon=1000
        )
        ours.append(coefficient)
    assert ours == pytest.approx(VERL["kl_coefficients"])
    assert ours[0] < ours[1] > ours[2]


@pytest.mark.parametrize(("divergence", "factor"), [(0.0, 0.8), (100.0, 1.2)])
def test_a_step_larger_than_the_horizon_keeps_the_coefficient_positive(divergence: float, factor: float):
    after = next_kl_coefficient(0.01, divergence=divergence, target=6.0, num_trajectories=8192, horizon=1000)
    assert after == pytest.approx(0.01 * factor)


def test_a_nan_divergence_raises():
    with pytest.raises(FloatingPointError, match="nan"):
        next_kl_coefficient(0.01, divergence=float("nan"), target=6.0, num_trajectories=8, horizon=1000)
