"""Four ranks with hybrid sharding or CPU offload have the gradient of one rank."""

import pytest
import torch
from torch import multiprocessing

from agentrl.config.schema.run import ModelSection
from agentrl.training.parallel import Parallel, open_store
from tests.training.hybrid_ranks import CASES, UpdateResult, run_rank, update_once
from tests.training.training_cases import alone

RELATIVE = 1e-5
"""Tolerance relative to the norm of each gradient: float32 sums in another order."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # four new processes


@pytest.fixture(scope="module")
def four_ranks(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, UpdateResult]]:
    folder = tmp_path_factory.mktemp("four_ranks")
    store = open_store("127.0.0.1")
    arguments = (4, store.port, policy.path, str(folder))
    multiprocessing.spawn(run_rank, args=arguments, nprocs=4)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("case", CASES)
def test_four_ranks_have_the_gradient_of_one(
    four_ranks: list[dict[str, UpdateResult]], policy: ModelSection, case: str
):
    parallel = Parallel(alone())
    try:
        single = update_once(parallel, policy.path, case)
    finally:
        parallel.close()
    total = sum(gradient.norm().item() ** 2 for gradient in single.gradients.values()) ** 0.5
    assert single.grad_norm == pytest.approx(total, rel=RELATIVE)  # the gradients are those of the update
    for results in four_ranks:
        assert results[case].grad_norm == pytest.approx(single.grad_norm, rel=RELATIVE)
        assert results[case].gradients.keys() == single.gradients.keys()
        for name, gradient in single.gradients.items():
            assert gradient.norm() > 0, name
            assert (results[case].gradients[name] - gradient).norm() <= RELATIVE * gradient.norm(), name


@pytest.mark.parametrize("case", CASES)
def test_four_ranks_publish_their_weights(four_ranks: list[dict[str, UpdateResult]], case: str):
    first, *others = (results[case] for results in four_ranks)
    assert [result.published for result in others] == [None] * 3
    assert first.published is not None
    assert first.published.keys() == first.weights.keys()
    for name, weight in first.weights.items():
        assert torch.equal(first.published[name], weight), name
