"""The adaptive coefficient beside verl's own code; `record_verl` says how its values were made."""

import json
from pathlib import Path

import pytest

from agentrl.algorithms.kl_control import next_kl_coefficient

VERL = json.loads(Path(__file__).with_name("verl_values.json").read_text())


def test_the_controller_of_the_coefficient_is_verls():
    coefficient, ours = 0.1, []
    for divergence in (9.0, 6.3, 2.0):
        coefficient = next_kl_coefficient(
            coefficient, divergence=divergence, target=6.0, num_trajectories=64, horizon=1000
        )
        ours.append(coefficient)
    assert ours == pytest.approx(VERL["kl_coefficients"])
    assert ours[0] < ours[1] > ours[2]
