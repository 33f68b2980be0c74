"""A worker before new weights: the number of its process in a stream, and the models that it refuses."""

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import GPTNeoXConfig, MixtralConfig

from agentrl.errors import EngineError

pytestmark = pytest.mark.vllm


def test_copies_of_a_dense_model_have_numbers_of_their_own_though_vllm_calls_each_rank_0():
    from vllm.config import ParallelConfig  # pyright: ignore[reportMissingImports]

    from agentrl.engine.vllm.worker import WeightLoading

    numbers = []
    for copy in (0, 1):
        parallel = ParallelConfig(tensor_parallel_size=2, data_parallel_size=1)
        parallel.data_parallel_index = copy  # as vLLM's core leaves it for a dense model (`EngineCoreProc`)
        assert parallel.data_parallel_rank == 0
        for rank in (0, 1):
            worker = WeightLoading()
            worker.vllm_config, worker.device, worker.rank = SimpleNamespace(parallel_config=parallel), "cpu", rank
            numbers.append(worker.agentrl_receiver._process)
    assert numbers == [0, 1, 2, 3]


@pytest.mark.slow
def test_experts_are_refused_on_a_cpu_and_a_dense_model_of_renamed_weights_is_not(tmp_path: Path):
    from vllm.config import ModelConfig  # pyright: ignore[reportMissingImports]

    from agentrl.engine.vllm.worker import WeightLoading

    def prepared(config: GPTNeoXConfig | MixtralConfig, device: str) -> int:
        config.save_pretrained(tmp_path)
        worker, sources = WeightLoading(), []
        receiver: Any = SimpleNamespace(prepare=sources.append)
        model = ModelConfig(str(tmp_path), skip_tokenizer_init=True)
        worker.vllm_config, worker.device = SimpleNamespace(model_config=model), device
        worker.agentrl_receiver = receiver
        worker.agentrl_map_weights(pickle.dumps(SimpleNamespace(lora=None)))
        return len(sources)

    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 100}
    dense = GPTNeoXConfig(**sizes, architectures=["GPTNeoXForCausalLM"])
    mixture = MixtralConfig(**sizes, num_key_value_heads=4, architectures=["MixtralForCausalLM"])
    assert prepared(dense, "cpu") == 1
    assert prepared(mixture, "cuda") == 1
    with pytest.raises(EngineError, match="packed copies of experts"):
        prepared(mixture, "cpu")
