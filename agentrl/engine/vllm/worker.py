"""Extension of vLLM's workers: loads new weights in the process that runs the model.

vLLM mixes `WeightLoading` into its worker class (`worker_extension_cls`) and calls its methods by name on every rank.
"""

import pickle
from functools import cached_property
from typing import Any

import torch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # pyright: ignore[reportMissingImports]
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore[reportMissingImports]

from agentrl.errors import EngineError
from agentrl.models.file_names import FileNames
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.lora_factors import whole_model
from agentrl.weight_sync.receiver import WeightReceiver


class WeightLoading:
    """Methods added to a vLLM worker; their argument is a `WeightSource`, pickled by the engine."""

    model_runner: Any
    """Attribute of vLLM's worker, as the next three."""
    vllm_config: Any
    device: Any
    rank: int

    def agentrl_map_weights(self, pickled_source: bytes) -> None:
        """Check that the weights can be read here, while the old ones are intact."""
        source: WeightSource = pickle.loads(pickled_source)
        if source.lora is None and str(self.device) == "cpu" and self.vllm_config.model_config.get_num_experts():
            raise EngineError(
                "vLLM on a CPU computes with packed copies of experts, which new weights do not reach. For a mixture of "
                "experts use `rollout.engine: transformers`, or a GPU"
            )
        self.agentrl_receiver.prepare(source)

    def agentrl_load_weights(self, pickled_source: bytes) -> None:
        """Replace the weights of this rank, in place; a failure half-way leaves a mixture."""
        source: WeightSource = pickle.loads(pickled_source)
        weights = self.agentrl_receiver.tensors(source)
        named = self.agentrl_file_names.of(weights) if source.lora is None else whole_model(weights, source.lora)
        self.reload_weights(weights_iterator=named)  # pyright: ignore[reportAttributeAccessIssue]
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
                # On CPU a head computes with a packed copy of its weight. vLLM does not pack a head again that is tied to the
                # embedding, so it would keep the old policy.
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    @cached_property
    def agentrl_file_names(self) -> FileNames:
        """Names of the weights in the model's folder."""
        return FileNames.of_folder(self.vllm_config.model_config.model)

    @cached_property
    def agentrl_receiver(self) -> WeightReceiver:
        """Receiver, which keeps the memory mapped."""
        parallel = self.vllm_config.parallel_config
        # `data_parallel_rank` is 0 in every copy of a dense model.
        process = parallel.data_parallel_index * parallel.world_size + self.rank
        return WeightReceiver(torch.device(self.device), process=process, builds_layers=True)
