"""Changes of actor and reference in a new stage."""

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agentrl.config.schema.run import ModelSection
from tests.training import two_ranks
from tests.training.training_cases import alone
from tests.training.two_ranks import Rank, make_step, start_rank, step_groups


@pytest.fixture
def rank(policy: ModelSection, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rank]:
    monkeypatch.setattr(two_ranks, "ACTOR", two_ranks.ACTOR.model_copy(update={"warmup_steps": 4}))
    started = start_rank(alone(), policy.path)
    yield started
    started.close()


def save(rank: Rank, url: Path) -> None:
    rank.actor.save(str(url))
    while not rank.actor.saved():
        time.sleep(0.01)


def test_a_reset_optimiser_restarts_warm_up_and_moments(rank: Rank, tmp_path: Path):
    rates = [make_step(rank, step).metrics["actor/learning_rate"] for step in (1, 2)]
    rank.actor.reset_optimiser(2)
    assert not rank.actor._optimiser.state
    rates += [make_step(rank, step).metrics["actor/learning_rate"] for step in (3, 4)]
    assert rates == [0.0025, 0.005, 0.0025, 0.005]
    save(rank, tmp_path / "checkpoint")
    rank.actor.reset_optimiser(4)
    rank.actor.load(str(tmp_path / "checkpoint"))
    assert make_step(rank, 5).metrics["actor/learning_rate"] == 0.0075, "a checkpoint has the start of the warm-up"
    [moments, *_] = rank.actor._optimiser.state.values()
    assert moments["step"] == 6, "three steps with two mini-batches each"


def test_the_reference_loads_the_policy_of_a_checkpoint(rank: Rank, tmp_path: Path):
    make_step(rank, 1)
    save(rank, tmp_path / "checkpoint")
    trajectories = [trajectory.ref for group in step_groups(2) for trajectory in group.trajectories]
    [before, *_] = rank.reference.logprobs(trajectories)
    rank.reference.load(str(tmp_path / "checkpoint"))
    for ours, theirs in zip(rank.reference.logprobs(trajectories), rank.actor.logprobs(trajectories), strict=True):
        assert np.array_equal(ours, theirs)
    assert not np.array_equal(rank.reference.logprobs(trajectories)[0], before)
    assert not any(parameter.requires_grad for parameter in rank.reference._model.parameters())
    assert torch.is_grad_enabled()
