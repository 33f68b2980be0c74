"""Four ranks that hold two copies of the weights in halves, or keep them on the CPU, have the gradient of one."""

import pytest
import torch
from hybrid_ranks import CASES, UpdateResult, run_rank, update_once
from torch import multiprocessing
from training_cases import alone

from agentrl.config.schema import ModelSection
from agentrl.training.parallel import Parallel, open_store

RELATIVE = 1e-5
"""Of the norm of each weight's gradient: float32 sums in another order."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # four processes that load everything anew


@pytest.fixture(scope="module")
def four_ranks(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, UpdateResult]]:
    folder = tmp_path_factory.mktemp("four_ranks")
    meeting = open_store("127.0.0.1")
    arguments = (4, meeting.port, policy.path, str(folder))
    multiprocessing.spawn(run_rank, args=arguments, nprocs=4)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("case", CASES)
def test_an_update_of_four_ranks_has_the_gradient_of_one(
    four_ranks: list[dict[str, UpdateResult]], policy: ModelSection, case: str
):
    parallel = Parallel(alone())
    try:
        one = update_once(parallel, policy.path, case)
    finally:
        parallel.close()
    total = sum(gradient.norm().item() ** 2 for gradient in one.gradients.values()) ** 0.5
    assert one.grad_norm == pytest.approx(total, rel=RELATIVE)  # so these are the gradients
    for of_rank in four_ranks:
        assert of_rank[case].grad_norm == pytest.approx(one.grad_norm, rel=RELATIVE)
        assert of_rank[case].gradients.keys() == one.gradients.keys()
        for name, gradient in one.gradients.items():
            assert gradient.norm() > 0, name
            assert (of_rank[case].gradients[name] - gradient).norm() <= RELATIVE * gradient.norm(), name


@pytest.mark.parametrize("case", CASES)
def test_four_ranks_publish_the_weights_that_they_hold(four_ranks: list[dict[str, UpdateResult]], case: str):
    first, *others = (of_rank[case] for of_rank in four_ranks)
    assert [found.published for found in others] == [None] * 3
    assert first.published is not None
    assert first.published.keys() == first.weights.keys()
    for name, weight in first.weights.items():
        assert torch.equal(first.published[name], weight), name
