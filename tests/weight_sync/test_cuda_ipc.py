"""What of CUDA IPC can be seen without a GPU; `test_gpu_transports` has the rest."""

import inspect

import torch
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from agentrl.weight_sync.cuda_ipc import DEVICE_ARGUMENT, on_device


def test_a_buffer_is_opened_on_the_gpu_by_the_number_that_it_has_here():
    """Processes see different GPUs: the first of the sender may be the second of a worker of an engine on two."""
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    assert names[DEVICE_ARGUMENT] == "storage_device"
    here = on_device(names, torch.device("cuda", 1))
    assert here == [*names[:DEVICE_ARGUMENT], 1, *names[DEVICE_ARGUMENT + 1 :]]
