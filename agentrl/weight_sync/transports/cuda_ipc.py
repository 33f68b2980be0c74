"""Transfer of weights to engines on the same GPU, in buckets that both processes map (CUDA IPC).

Every rank of the actor fills two buckets in turn, and the engines on its GPU copy out of them. Rank and engines find each
other by the name of the GPU. Buckets are reused within a sync, because opening one is slow, and freed at its end, because
they may take gigabytes. Follows `torch.multiprocessing.reductions`; not yet run on a GPU.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import reduce_tensor

from agentrl.weight_sync.base import WAIT_TIMEOUT_S, WeightSource
from agentrl.weight_sync.rendezvous import Rendezvous
from agentrl.weight_sync.tensor_layout import size_of, split_into_buckets, view_of
from agentrl.weight_sync.transports.broadcast import BUCKET_BYTES, StoreConnection, fill

_NUM_BUFFERS = 2
"""One is filled while the other is read."""
DEVICE_ARGUMENT = 6
"""Position of the GPU's number in the arguments of torch's `rebuild_cuda_tensor`."""


class CudaIpcSender:
    """The sending end, on one rank."""

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        bucket_bytes: int = BUCKET_BYTES,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        """Take the store that the receivers join."""
        self._store = store
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._timeout_s = timeout_s

    def send(self, source: WeightSource, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Hand all tensors of `source`, in its order, to the receivers on this rank's GPU; `weights` are taken one at a time.

        Raises:
            EngineError: a receiver did not arrive or was lost; the error names it.
        """
        gpu = _name_of(self._device)
        rendezvous = Rendezvous(self._store, f"{source.publisher}/{source.serial}", me=gpu, timeout_s=self._timeout_s)
        arrived = rendezvous.wait("arrival", source.receivers)
        mine = [receiver for receiver, on in arrived.items() if on.decode() == gpu]
        buckets, coming = split_into_buckets(source.tensors, self._bucket_bytes), iter(weights)
        buffers = self._share_buffers(rendezvous, mine, max(size_of(bucket) for bucket in buckets))
        for index, bucket in enumerate(buckets):
            if index >= _NUM_BUFFERS:
                rendezvous.wait(f"took {index - _NUM_BUFFERS}", mine)
            octets = buffers[index % _NUM_BUFFERS]
            fill(octets, bucket, coming)
            torch.cuda.synchronize(self._device)
            rendezvous.publish(f"filled {index}")
        for index in range(max(0, len(buckets) - _NUM_BUFFERS), len(buckets)):
            rendezvous.wait(f"took {index}", mine)
        rendezvous.wait("closed", mine)
        rendezvous.close()

    def _share_buffers(self, rendezvous: Rendezvous, receivers: list[str], size_bytes: int) -> list[Tensor]:
        """Return new buffers that every receiver can open."""
        buffers = [torch.empty(size_bytes, dtype=torch.uint8, device=self._device) for _ in range(_NUM_BUFFERS)]
        for receiver in receivers:
            # torch counts the processes that open a buffer, so each gets handles of its own.
            rendezvous.publish(f"buffers for {receiver}", pickle.dumps([reduce_tensor(buffer) for buffer in buffers]))
        return buffers


class CudaIpcReceiver:
    """The receiving end, in the process that has the engine's model."""

    def __init__(
        self, device: torch.device, *, bucket_bytes: int = BUCKET_BYTES, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Take the settings; `bucket_bytes` must be the sender's. Nothing is connected before `tensors`."""
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._store = StoreConnection(timeout_s)

    def tensors(self, source: WeightSource, me: str) -> Iterator[tuple[str, Tensor]]:
        """Yield what the rank on this GPU sends to the receiver `me`; each tensor is a view, valid until the next is requested.

        Raises:
            EngineError: the rank did not arrive or was lost.
        """
        gpu = _name_of(self._device)
        rendezvous, _ = self._store.join(source, me)
        rendezvous.publish("arrival", gpu.encode())
        handles = pickle.loads(rendezvous.wait(f"buffers for {me}", [gpu])[gpu])
        buffers: list[Tensor] = [rebuild(*on_device(arguments, self._device)) for rebuild, arguments in handles]
        for index, bucket in enumerate(split_into_buckets(source.tensors, self._bucket_bytes)):
            rendezvous.wait(f"filled {index}", [gpu])
            octets = buffers[index % _NUM_BUFFERS]
            for spec in bucket:
                yield spec.name, view_of(spec, octets)
            torch.cuda.synchronize(self._device)
            rendezvous.publish(f"took {index}")
            del octets
        buffers.clear()
        rendezvous.publish("closed")


def release_cached_memory() -> None:
    """Release GPU memory that torch caches, and that other processes cannot use meanwhile; memory in use stays."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()  # memory that other processes had opened and have closed
        torch.cuda.empty_cache()


def on_device(arguments: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the arguments of `rebuild_cuda_tensor` with this process's number of the GPU instead of the sender's."""
    number = torch.cuda.current_device() if device.index is None else device.index
    return [*arguments[:DEVICE_ARGUMENT], number, *arguments[DEVICE_ARGUMENT + 1 :]]


def _name_of(device: torch.device) -> str:
    return f"GPU {torch.cuda.get_device_properties(device).uuid}"
