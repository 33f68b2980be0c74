from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, multiprocessing
from transformers import AutoModelForCausalLM

from agentrl.config.schema.run import ModelSection, RunConfig
from agentrl.training.export import export_checkpoint
from agentrl.training.parallel import open_store
from tests.training.training_cases import alone
from tests.training.two_ranks import StepResult, make_step, run_rank, start_rank

pytestmark = pytest.mark.timeout(600)  # two new processes, on busy machines

VARIES = {
    "actor/update_s",
    "actor/packing_s",
    "actor/old_logprobs_s",
    "actor/gradients_s",
    "actor/tokens_per_s",
    "actor/memory_bytes_max",
    "actor/mfu",
    "actor/computed_tokens",
    "actor/rank_imbalance",
}
"""Metrics that vary with the number of ranks; the last three measure the division of the work."""


@dataclass
class BothRuns:
    folder: Path
    on_one_rank: list[StepResult]
    on_two_ranks: list[list[StepResult]]
    """Results by rank and step."""


@pytest.fixture(scope="module")
def runs(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> BothRuns:
    """Two steps on one rank in this process, and on two ranks in new processes over gloo."""
    folder = tmp_path_factory.mktemp("two_ranks")
    store = open_store("127.0.0.1")
    multiprocessing.spawn(run_rank, args=(2, store.port, policy.path, str(folder)), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    rank = start_rank(alone(), policy.path)
    single = [make_step(rank, step) for step in (1, 2)]
    rank.close()
    both = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]
    return BothRuns(folder=folder, on_one_rank=single, on_two_ranks=both)


def assert_same_way(ours: dict[str, Tensor] | None, theirs: dict[str, Tensor] | None, start: dict[str, Tensor]) -> None:
    assert ours is not None
    assert theirs is not None
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert (ours[name] - tensor).norm() < 5e-3 * (tensor - start[name]).norm(), name


@pytest.fixture(scope="module")
def start(policy: ModelSection) -> dict[str, Tensor]:
    model = AutoModelForCausalLM.from_pretrained(policy.path, dtype=torch.float32)
    return {name: tensor.detach() for name, tensor in model.named_parameters()}


@pytest.mark.slow
@pytest.mark.parametrize("step", [0, 1])
def test_two_ranks_make_the_update_of_one(runs: BothRuns, start: dict[str, Tensor], step: int):
    assert_same_way(runs.on_two_ranks[0][step].weights, runs.on_one_rank[step].weights, start)


@pytest.mark.parametrize("step", [0, 1])
def test_metrics_are_reduced_over_the_ranks(runs: BothRuns, step: int):
    steps = (runs.on_one_rank[step], runs.on_two_ranks[0][step], runs.on_two_ranks[1][step])
    single, first, second = (result.metrics for result in steps)
    assert single.keys() == first.keys() == second.keys()
    for name in single.keys() - VARIES:
        assert first[name] == second[name], name
        assert first[name] == pytest.approx(single[name], rel=1e-4, abs=1e-6), name
    assert single["actor/rank_imbalance"] == 1.0
    assert 1.0 <= first["actor/rank_imbalance"] == second["actor/rank_imbalance"] <= 2.0


def test_only_the_first_rank_publishes(runs: BothRuns):
    assert [result.weights for result in runs.on_two_ranks[1]] == [None, None]


def test_one_rank_resumes_a_checkpoint_of_two(runs: BothRuns, start: dict[str, Tensor], policy: ModelSection):
    rank = start_rank(alone(), policy.path)
    rank.actor.load(str(runs.folder / "checkpoint"))
    continued = make_step(rank, 2)
    rank.close()
    assert_same_way(continued.weights, runs.on_two_ranks[0][1].weights, start)


@pytest.mark.parametrize("way", ["gathered", "broadcast"])
def test_all_transports_of_two_ranks_publish_the_same_weights(runs: BothRuns, way: str):
    """Shared memory written by each rank, gathered by the first if another cannot write, and broadcast to an engine."""
    written, received = runs.on_two_ranks[0][1].weights, torch.load(runs.folder / "other_ways0.pt")[way]
    assert written is not None
    assert received.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(received[name], tensor), name


def test_a_second_publisher_of_the_same_ranks_waits_for_all_of_them(runs: BothRuns):
    """The messages of the ranks for an earlier publisher do not count."""
    written, second = runs.on_two_ranks[0][1].weights, torch.load(runs.folder / "published_again0.pt")
    assert written is not None
    assert second.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(second[name], tensor), name


def test_a_lost_engine_is_named_and_both_ranks_go_on(runs: BothRuns):
    """The ranks' next calls, on the same process group, are those of `other_ways`."""
    first, second = (torch.load(runs.folder / f"nobody{rank}.pt") for rank in (0, 1))
    assert "missing: engine 0/0" in first
    assert second is None


def test_two_ranks_export_their_published_weights(runs: BothRuns):
    exported = AutoModelForCausalLM.from_pretrained(runs.folder / "export")
    published = runs.on_two_ranks[0][1].weights
    assert published is not None
    for name, tensor in exported.named_parameters():
        assert torch.equal(tensor, published[name]), name


def test_one_process_exports_a_checkpoint_of_two_ranks_exactly(runs: BothRuns, policy: ModelSection, tmp_path: Path):
    """The checkpoint is that after the first step."""
    export_checkpoint(str(runs.folder / "checkpoint"), RunConfig(model=policy), str(tmp_path))
    published = runs.on_two_ranks[0][0].weights
    assert published is not None
    for name, tensor in AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters():
        assert torch.equal(tensor, published[name]), name
