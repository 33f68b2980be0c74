"""What agentrl adds to vLLM's own workers: new weights from shared memory, in the process that runs the model.

vLLM mixes `WeightReceiver` into its worker class (`worker_extension_cls`) and calls it by name, on every rank.
"""

import contextlib
import os
import pickle
import select
import shutil
import signal
import threading
from typing import Any

from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # pyright: ignore[reportMissingImports]
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead  # pyright: ignore[reportMissingImports]

from agentrl.weight_sync.base import WeightSource
from agentrl.weight_sync.shared_memory import read_tensors


class WeightReceiver:
    """Methods that a vLLM worker gains. Arguments are bytes: a pickled `WeightSource`, made by the engine of this worker."""

    model_runner: Any
    """vLLM's, as are the methods used here."""

    def agentrl_follow(self, pid: int, children: list[int], socket_folder: str) -> None:
        """End vLLM when the process `pid`, that of the engine, is gone: after a kill -9 its `children` would stay for ever."""
        arguments = (os.pidfd_open(pid), children, socket_folder)
        threading.Thread(target=_end_after, args=arguments, name="agentrl-follow", daemon=True).start()

    def agentrl_map_weights(self, pickled_source: bytes) -> None:
        """Fail now if the weights cannot be read here, while the old ones are whole."""
        for _ in read_tensors(pickle.loads(pickled_source)):
            pass

    def agentrl_load_weights(self, pickled_source: bytes) -> None:
        """Replace the weights of this rank, in place; a failure half-way leaves a mixture."""
        source: WeightSource = pickle.loads(pickled_source)
        self.reload_weights(weights_iterator=read_tensors(source))  # pyright: ignore[reportAttributeAccessIssue]
        for module in self.model_runner.get_model().modules():
            if isinstance(module, ParallelLMHead) and hasattr(module, "cpu_linear"):
                # On CPU a head computes with a packed copy of its weight. Nothing was loaded into a head that is tied to the
                # embedding, so vLLM did not pack it again, and it would go on with the old policy.
                dispatch_cpu_unquantized_gemm(module, remove_weight=False)


def _end_after(process_fd: int, children: list[int], socket_folder: str) -> None:
    select.select([process_fd], [], [])
    shutil.rmtree(socket_folder, ignore_errors=True)
    for child in (child for child in children if child != os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    os._exit(1)
