"""Every process of an engine takes part in a stream of weights under a number of its own."""

from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.vllm


def test_copies_of_a_dense_model_have_numbers_of_their_own_though_vllm_calls_each_rank_0():
    from vllm.config import ParallelConfig  # pyright: ignore[reportMissingImports]

    from agentrl.engine.vllm_worker import WeightLoading

    numbers = []
    for copy in (0, 1):
        parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=1)
        parallel.data_parallel_index = copy  # as vLLM's core leaves it for a dense model (`EngineCoreProc`)
        assert parallel.data_parallel_rank == 0
        for rank in (0, 1):
            worker = WeightLoading()
            worker.vllm_config, worker.device, worker.rank = SimpleNamespace(parallel_config=parallel), "cpu", rank
            numbers.append(worker._agentrl_receiver()._process)
    assert numbers == [0, 1, 2, 3]
