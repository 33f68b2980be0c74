"""Runs resumed from a checkpoint of one rank: identical on one rank, within rounding on two."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import multiprocessing

from agentrl.config.schema.run import ModelSection
from agentrl.training.parallel import open_store
from tests.training.training_cases import alone
from tests.training.two_ranks import StepResult, make_step, resume_rank, start_rank

TIMES = {f"actor/{part}_s" for part in ("update", "packing", "old_logprobs", "gradients")}
VARIES = TIMES | {"actor/tokens_per_s", "actor/memory_bytes_max", "actor/mfu"}
VARIES_WITH_RANKS = VARIES | {"actor/computed_tokens", "actor/rank_imbalance"}
"""Metrics that vary with the number of ranks; the last three measure the division of the work."""


@dataclass
class Uninterrupted:
    folder: Path
    first: StepResult
    second: StepResult


@pytest.fixture(scope="module")
def uninterrupted(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> Uninterrupted:
    """Two steps of one rank; the checkpoint between them is written during the second."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    rank = start_rank(alone(), policy.path)
    first = make_step(rank, 1)
    rank.actor.save(f"{folder}/checkpoint")
    second = make_step(rank, 2)
    rank.close()
    return Uninterrupted(folder=folder, first=first, second=second)


def test_a_resumed_rank_makes_an_identical_step(uninterrupted: Uninterrupted, policy: ModelSection):
    store = open_store("127.0.0.1")
    resume_rank(0, 1, store.port, policy.path, str(uninterrupted.folder))
    resumed: StepResult = torch.load(uninterrupted.folder / "resumed0.pt", weights_only=False)
    expected = uninterrupted.second
    assert {k: v for k, v in resumed.metrics.items() if k not in VARIES} == {
        k: v for k, v in expected.metrics.items() if k not in VARIES
    }
    assert resumed.weights is not None
    assert expected.weights is not None
    for name, tensor in expected.weights.items():
        assert torch.equal(resumed.weights[name], tensor), name


@pytest.mark.slow
def test_two_resumed_ranks_make_the_same_step_within_rounding(uninterrupted: Uninterrupted, policy: ModelSection):
    store = open_store("127.0.0.1")
    arguments = (2, store.port, policy.path, str(uninterrupted.folder))
    multiprocessing.spawn(resume_rank, args=arguments, nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    resumed: StepResult = torch.load(uninterrupted.folder / "resumed0.pt", weights_only=False)
    expected = uninterrupted.second
    for name in expected.metrics.keys() - VARIES_WITH_RANKS:
        assert resumed.metrics[name] == pytest.approx(expected.metrics[name], rel=1e-4, abs=1e-6), name
    assert resumed.weights is not None
    assert expected.weights is not None
    assert uninterrupted.first.weights is not None
    for name, tensor in expected.weights.items():
        step_taken = (tensor - uninterrupted.first.weights[name]).norm()
        assert (resumed.weights[name] - tensor).norm() < 1e-3 * step_taken, name
