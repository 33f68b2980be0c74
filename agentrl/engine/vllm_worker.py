"""What agentrl adds to vLLM's own workers: new weights from shared memory, in the process that runs the model.

vLLM mixes `WeightLoading` into its worker class (`worker_extension_cls`) and calls it by name, on every rank.
"""

import pickle
from typing import Any

import torch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # pyright: ignore[reportMissingImports]
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore[reportMissingImports]

from agentrl.errors import EngineError
from agentrl.training.file_names import FileNames
from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.lora_factors import whole_model
from agentrl.weight_sync.receiver import WeightReceiver


class WeightLoading:
    """Methods that a vLLM worker gains. Arguments are bytes: a pickled `WeightSource`, made by the engine of this worker."""

    model_runner: Any
    """vLLM's, as are the methods used here, and those of the next three."""
    vllm_config: Any
    device: Any
    rank: int
    agentrl_receiver: WeightReceiver | None = None
    agentrl_file_names: FileNames | None = None

    def agentrl_map_weights(self, pickled_source: bytes) -> None:
        """Fail now if the weights cannot be read here, while the old ones are whole."""
        source: WeightSource = pickle.loads(pickled_source)
        if source.lora is None and str(self.device) == "cpu" and self.vllm_config.model_config.get_num_experts():
            raise EngineError(
                "vLLM on a CPU computes with packed copies of experts, which new weights do not reach; use "
                "`rollout.engine: transformers` for a mixture of experts, or a GPU"
            )
        self._agentrl_receiver().prepare(source)

    def agentrl_load_weights(self, pickled_source: bytes) -> None:
        """Replace the weights of this rank, in place; a failure half-way leaves a mixture."""
        source: WeightSource = pickle.loads(pickled_source)
        weights = self._agentrl_receiver().tensors(source)
        named = self._agentrl_file_names().of(weights) if source.lora is None else whole_model(weights, source.lora)
        self.reload_weights(weights_iterator=named)  # pyright: ignore[reportAttributeAccessIssue]
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
                # On CPU a head computes with a packed copy of its weight. Nothing was loaded into a head that is tied to the
                # embedding, so vLLM did not pack it again, and it would go on with the old policy.
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)

    def _agentrl_file_names(self) -> FileNames:
        if self.agentrl_file_names is None:
            self.agentrl_file_names = FileNames.of_folder(self.vllm_config.model_config.model)
        return self.agentrl_file_names

    def _agentrl_receiver(self) -> WeightReceiver:
        """Return what keeps the weights' memory mapped. vLLM puts whole layers together, so it needs all of their tensors."""
        if self.agentrl_receiver is None:
            parallel = self.vllm_config.parallel_config
            # `data_parallel_rank` is 0 in every copy of a dense model.
            process = parallel.data_parallel_index * parallel.world_size + self.rank
            self.agentrl_receiver = WeightReceiver(torch.device(self.device), process=process, only_changed=False)
        return self.agentrl_receiver
