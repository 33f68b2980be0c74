"""Four ranks that hold two copies of the weights in halves, or keep them on the CPU, make the update of one."""

from typing import Any

import pytest
import torch
from hybrid_ranks import CASES, run_rank, update_once
from torch import multiprocessing
from training_cases import alone

from agentrl.config.schema import ModelSection
from agentrl.training.parallel import Parallel, open_store

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # four processes that load everything anew


@pytest.fixture(scope="module")
def four_ranks(policy: ModelSection, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("four_ranks")
    meeting = open_store("127.0.0.1")
    arguments = (4, meeting.port, policy.path, str(folder))
    multiprocessing.spawn(run_rank, args=arguments, nprocs=4)  # pyright: ignore[reportPrivateImportUsage]
    return [torch.load(folder / f"rank{rank}.pt", weights_only=False) for rank in range(4)]


@pytest.mark.parametrize("case", CASES)
def test_four_ranks_make_the_update_of_one(four_ranks: list[dict[str, Any]], policy: ModelSection, case: str):
    parallel = Parallel(alone())
    try:
        norm, expected = update_once(parallel, policy.path, case)
    finally:
        parallel.close()
    assert [found[case][0] for found in four_ranks] == pytest.approx([norm] * 4, rel=1e-5)
    assert [found[case][1] for found in four_ranks[1:]] == [None] * 3
    weights = four_ranks[0][case][1]
    assert expected is not None
    assert weights.keys() == expected.keys()
    # Adam divides by the size of a gradient: next to none, rounding decides the sign. So the whole is compared.
    for name, weight in expected.items():
        assert (weights[name] - weight).norm() <= 5e-3 * max(weight.norm().item(), 0.01), name
