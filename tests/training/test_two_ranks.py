from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, multiprocessing
from training_cases import alone
from transformers import AutoModelForCausalLM
from two_ranks import StepResult, make_step, run_rank, start_rank

from agentrl.config.schema import ModelSection, RunConfig
from agentrl.training.checkpoint_export import export_checkpoint
from agentrl.training.parallel import open_store

pytestmark = pytest.mark.timeout(600)  # two processes that load everything anew, on machines that do other work as well

VARIES = {
    "actor/update_s",
    "actor/packing_s",
    "actor/old_logprobs_s",
    "actor/gradients_s",
    "actor/tokens_per_s",
    "actor/memory_bytes_max",
    "actor/mfu",
    "actor/computed_tokens",
    "actor/attention_padding",
    "actor/rank_imbalance",
}
"""With the number of ranks: the last three say how the work was divided."""


@dataclass
class BothRuns:
    folder: Path
    one: list[StepResult]
    two: list[list[StepResult]]
    """By rank, then by step."""


@pytest.fixture(scope="module")
def runs(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> BothRuns:
    """The same two steps on one rank, here, and on two ranks, in processes of their own over gloo."""
    folder = tmp_path_factory.mktemp("two_ranks")
    meeting = open_store("127.0.0.1")
    multiprocessing.spawn(run_rank, args=(2, meeting.port, policy.path, str(folder)), nprocs=2)  # pyright: ignore[reportPrivateImportUsage]
    rank = start_rank(alone(), policy.path)
    one = [make_step(rank, step) for step in (1, 2)]
    rank.close()
    two = [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in (0, 1)]
    return BothRuns(folder=folder, one=one, two=two)


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


@pytest.mark.parametrize("step", [0, 1])
def test_two_ranks_make_the_update_of_one(runs: BothRuns, start: dict[str, Tensor], step: int):
    assert_same_way(runs.two[0][step].weights, runs.one[step].weights, start)


@pytest.mark.parametrize("step", [0, 1])
def test_metrics_are_reduced_over_the_ranks(runs: BothRuns, step: int):
    one, first, second = (result.metrics for result in (runs.one[step], runs.two[0][step], runs.two[1][step]))
    assert one.keys() == first.keys() == second.keys()
    for name in one.keys() - VARIES:
        assert first[name] == second[name], name
        assert first[name] == pytest.approx(one[name], rel=1e-4, abs=1e-6), name
    assert one["actor/rank_imbalance"] == 1.0
    assert 1.0 <= first["actor/rank_imbalance"] == second["actor/rank_imbalance"] <= 2.0


def test_only_the_first_rank_publishes(runs: BothRuns):
    assert [result.weights for result in runs.two[1]] == [None, None]


def test_a_checkpoint_of_two_ranks_is_continued_by_one(runs: BothRuns, start: dict[str, Tensor], policy: ModelSection):
    rank = start_rank(alone(), policy.path)
    rank.actor.load(str(runs.folder / "checkpoint"))
    continued = make_step(rank, 2)
    rank.close()
    assert_same_way(continued.weights, runs.two[0][1].weights, start)


@pytest.mark.parametrize("way", ["gathered", "broadcast"])
def test_weights_are_the_same_by_whichever_way_they_leave_two_ranks(runs: BothRuns, way: str):
    """Written by each rank into shared memory, gathered by the first where another cannot, and broadcast to an engine."""
    written, came = runs.two[0][1].weights, torch.load(runs.folder / "other_ways0.pt")[way]
    assert written is not None
    assert came.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(came[name], tensor), name


def test_a_later_publishing_of_the_same_ranks_waits_for_all_of_them_too(runs: BothRuns):
    """And does not take for its own what a rank told the others for an earlier one."""
    written, again = runs.two[0][1].weights, torch.load(runs.folder / "published_again0.pt")
    assert written is not None
    assert again.keys() == written.keys()
    for name, tensor in written.items():
        assert torch.equal(again[name], tensor), name


def test_an_engine_that_is_lost_is_named_and_both_ranks_go_on(runs: BothRuns):
    """What they do next, on the same process group, is what `other_ways` compares."""
    first, second = (torch.load(runs.folder / f"nobody{rank}.pt") for rank in (0, 1))
    assert "missing: engine 0/0" in first
    assert second is None


def test_two_ranks_export_the_weights_that_they_publish(runs: BothRuns):
    exported = AutoModelForCausalLM.from_pretrained(runs.folder / "export")
    published = runs.two[0][1].weights
    assert published is not None
    for name, tensor in exported.named_parameters():
        assert torch.equal(tensor, published[name]), name


def test_a_checkpoint_of_two_ranks_is_exported_by_one_process_to_the_bit(
    runs: BothRuns, policy: ModelSection, tmp_path: Path
):
    """It was written after the first step."""
    export_checkpoint(str(runs.folder / "checkpoint"), RunConfig(model=policy), str(tmp_path))
    published = runs.two[0][0].weights
    assert published is not None
    for name, tensor in AutoModelForCausalLM.from_pretrained(tmp_path).named_parameters():
        assert torch.equal(tensor, published[name]), name
