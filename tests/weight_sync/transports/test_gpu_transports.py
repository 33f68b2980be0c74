"""Broadcast over NCCL, CUDA IPC, and weights moved to the host, on real GPUs; not yet run.

Needs only torch, transformers and pytest:
`python -m pytest -c /dev/null --rootdir . -p no:cacheprovider tests/weight_sync/transports/test_gpu_transports.py`.
"""

from typing import Any

import pytest
import torch
from torch import multiprocessing, nn
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from agentrl.engine.embedded.resident_weights import ResidentWeights
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.receiver import WeightReceiver
from agentrl.weight_sync.tensor_layout import lay_out, size_of
from agentrl.weight_sync.transports.broadcast import BroadcastSender, store_at
from agentrl.weight_sync.transports.cuda_ipc import CudaIpcSender, release_cached_memory
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

SHAPES = [(4096, 4096), (333, 77), (50_000, 1024), (1,), (4096, 11_008)] * 2  # several buckets


def weights(serial: int, device: str) -> dict[str, torch.Tensor]:
    draws = torch.Generator(device).manual_seed(serial)
    return {f"w{i}": torch.randn(*shape, generator=draws, device=device) for i, shape in enumerate(SHAPES)}


def offer(transport: Transport, store: Any, serial: int) -> WeightSource:
    specs = lay_out({f"w{i}": (torch.Size(shape), torch.bfloat16) for i, shape in enumerate(SHAPES)})
    return WeightSource(
        transport=transport,
        address=f"127.0.0.1:{store.port}",
        size_bytes=size_of(specs),
        tensors=specs,
        publisher="actor",
        serial=serial,
        receivers=("engine 0/0",),
        receiver="engine 0",
    )


def receive(sources: list[WeightSource], device: str) -> None:
    """Take every version, and report success in the store."""
    torch.cuda.set_device(device)
    receiver = WeightReceiver(torch.device(device))
    for source in sources:
        expected = weights(source.serial, "cuda:0")
        count = 0
        for name, tensor in receiver.tensors(source):
            assert torch.equal(tensor.to("cuda:0"), expected[name].bfloat16()), name
            count += 1
        assert count == len(SHAPES)
    store_at(sources[0].address, 60).set("all is well", "1")


def play(transport: Transport, sender: Any, store: Any, device: str) -> None:
    sources = [offer(transport, store, serial) for serial in (1, 2, 3)]
    process = multiprocessing.get_context("spawn").Process(target=receive, args=(sources, device))
    process.start()
    for source in sources:
        sender.send(source, weights(source.serial, "cuda:0").items())
    process.join(120)
    assert process.exitcode == 0
    assert store.check(["all is well"])


def test_cuda_ipc_transfers_every_version_to_another_process_on_the_same_gpu():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    release_cached_memory()
    before = torch.cuda.memory_reserved()
    play(Transport.CUDA_IPC, CudaIpcSender(store, torch.device("cuda:0")), store, "cuda:0")
    release_cached_memory()
    assert torch.cuda.memory_reserved() <= before, "the buckets are freed"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs")
def test_nccl_transfers_every_version_to_a_process_on_another_gpu():
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sender = BroadcastSender(store, torch.device("cuda:0"))
    play(Transport.BROADCAST, sender, store, "cuda:1")
    sender.close()


def test_a_sleeping_engine_frees_its_memory_and_wakes_with_new_weights():
    model = nn.Linear(4096, 4096, device="cuda")
    weights, before = ResidentWeights(model, "cuda"), model.weight.detach().cpu().clone()
    full = torch.cuda.memory_reserved()  # what other processes cannot have
    weights.drop()
    assert full - torch.cuda.memory_reserved() >= before.nbytes
    publisher = SharedMemoryPublisher()
    weights.load(publisher.publish({"weight": before + 1, "bias": torch.zeros(4096)}.items()))
    publisher.close()
    assert torch.equal(model.weight.cpu(), before + 1)
