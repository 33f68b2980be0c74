"""Another reward on recorded trajectories: what changes, one by one and in the order within groups."""

import math
from dataclasses import replace

import pytest

from agentrl.replay.recorded_run import RecordedStep
from agentrl.replay.rescoring import compare_rankings
from tests.replay.test_verification import GOOD


def step(**rewards: float | None) -> RecordedStep:
    trajectories = [
        replace(GOOD, trajectory_id=name, prompt_id=name[0], reward=reward) for name, reward in rewards.items()
    ]
    return RecordedStep(step=1, prompts={}, trajectories=trajectories, fates={})


def test_pairs_are_of_one_group_and_counted_by_what_became_of_their_order():
    recorded = step(p0=1.0, p1=0.0, p2=0.0, q0=1.0, q1=0.0)
    scores = {"p0": 0.0, "p1": 1.0, "p2": 0.0, "q0": 0.5, "q1": 0.0}
    change = compare_rankings([recorded], scores)
    assert (change.num_pairs, change.num_reversed, change.num_tied, change.num_parted) == (3, 1, 1, 1)
    assert (change.num_scored, change.num_changed, change.num_failed) == (5, 3, 0)
    assert (change.mean_before, change.mean_after) == (pytest.approx(0.4), pytest.approx(0.3))
    assert change.examples == ("p0", "p1", "q0")


def test_a_failed_score_is_counted_and_a_trajectory_without_reward_is_not():
    change = compare_rankings([step(p0=1.0, p1=0.0, p2=None)], {"p0": 1.0})
    assert (change.num_scored, change.num_changed, change.num_failed, change.num_pairs) == (1, 0, 1, 0)
    assert math.isclose(change.mean_after, 1.0)
