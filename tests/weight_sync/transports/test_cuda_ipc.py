"""CUDA IPC as far as it runs without a GPU; `test_gpu_transports` has the rest."""

import inspect
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import rebuild_cuda_tensor

from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.tensor_layout import lay_out, size_of
from agentrl.weight_sync.transports import cuda_ipc
from agentrl.weight_sync.transports.cuda_ipc import DEVICE_ARGUMENT, CudaIpcReceiver, CudaIpcSender, on_device

CPU = torch.device("cpu")
SHARED: list["weakref.ref[Tensor]"] = []
"""Buffers that the sender has shared, in the order of their handles."""


def share(buffer: Tensor) -> tuple[object, tuple[int]]:
    """Stand in for the handles of CUDA: a number under which a thread of this process finds the buffer."""
    SHARED.append(weakref.ref(buffer))
    return open_shared, (len(SHARED) - 1,)


def open_shared(number: int) -> Tensor:
    buffer = SHARED[number]()
    assert buffer is not None, "freed before it was opened"
    return buffer


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    SHARED.clear()
    monkeypatch.setattr(cuda_ipc, "_name_of", lambda device: "GPU 0")
    monkeypatch.setattr(cuda_ipc, "reduce_tensor", share)
    monkeypatch.setattr(cuda_ipc, "on_device", lambda arguments, device: list(arguments))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)


@pytest.mark.usefixtures("on_cpu")
def test_the_buffers_of_a_sync_are_freed_at_its_end():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    weights = {f"w{i}": torch.full((7, 9), float(i)) for i in range(6)}
    specs = lay_out({name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()})
    sender, receiver = CudaIpcSender(store, CPU, bucket_bytes=600), CudaIpcReceiver(CPU, bucket_bytes=600)
    for serial in (1, 2):
        source = WeightSource(
            transport=Transport.CUDA_IPC,
            address=f"127.0.0.1:{store.port}",
            size_bytes=size_of(specs),
            tensors=specs,
            publisher="actor",
            serial=serial,
            receivers=("engine 0/0",),
        )
        with ThreadPoolExecutor(1) as thread:
            sent = thread.submit(sender.send, source, weights.items())
            received = {name: tensor.clone() for name, tensor in receiver.tensors(source, "engine 0/0")}
            sent.result(60)
        assert all(torch.equal(received[name], tensor) for name, tensor in weights.items())
        assert len(SHARED) == 2 * serial
        assert [buffer() for buffer in SHARED] == [None] * len(SHARED)


def test_a_buffer_is_opened_by_this_process_number_of_the_gpu():
    """Processes number GPUs differently: the sender's first may be the second one of an engine's worker."""
    names = list(inspect.signature(rebuild_cuda_tensor).parameters)
    assert names[DEVICE_ARGUMENT] == "storage_device"
    arguments = on_device(names, torch.device("cuda", 1))
    assert arguments == [*names[:DEVICE_ARGUMENT], 1, *names[DEVICE_ARGUMENT + 1 :]]
