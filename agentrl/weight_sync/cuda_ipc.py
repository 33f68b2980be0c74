"""Weights to engines on the same GPU, in buckets that both processes map (CUDA IPC).

Every rank of the actor fills two buckets in turn, and the engines of its GPU copy out of them: they are found by the name of
the GPU, whichever rank or engine it is. The buckets of a sync are written again and again, because opening one is slow, and
freed at its end: a large embedding makes them take gigabytes, which engine and actor need.

Written after torch's `torch.multiprocessing.reductions`; it has not run on a GPU yet.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]
from torch.multiprocessing.reductions import reduce_tensor

from agentrl.weight_sync.base import WAIT_TIMEOUT_S, WeightSource
from agentrl.weight_sync.broadcast import BUCKET_BYTES, MeetingPlace, checksum_of_bucket, compare_bucket, fill
from agentrl.weight_sync.meeting import Meeting
from agentrl.weight_sync.tensor_bytes import size_of, split_into_buckets, view_of

_NUM_BUFFERS = 2
"""One is filled while the other is read."""
_UNCHECKED = b"-"
DEVICE_ARGUMENT = 6
"""Where `rebuild_cuda_tensor` of torch takes the number of the GPU."""


class CudaIpcSender:
    """One rank's end."""

    def __init__(
        self,
        store: Store,
        device: torch.device,
        *,
        checked: bool = True,
        bucket_bytes: int = BUCKET_BYTES,
        timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        """Take the place at which the receivers are met."""
        self._store = store
        self._checked = checked
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._timeout_s = timeout_s

    def send(self, source: WeightSource, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Hand all tensors of `source`, in its order, to the receivers on this rank's GPU.

        Args:
            source: what the receivers are given too.
            weights: full tensors on this GPU, taken one at a time.

        Raises:
            EngineError: a receiver did not come, or was lost half-way; the message names it.
        """
        gpu = _name_of(self._device)
        meeting = Meeting(self._store, f"{source.publisher}/{source.serial}", me=gpu, timeout_s=self._timeout_s)
        arrived = meeting.hear("arrival", source.receivers)
        mine = [receiver for receiver, on in arrived.items() if on.decode() == gpu]
        buckets, coming = split_into_buckets(source.tensors, self._bucket_bytes), iter(weights)
        buffers = self._shared(meeting, mine, max(size_of(bucket) for bucket in buckets))
        for index, bucket in enumerate(buckets):
            if index >= _NUM_BUFFERS:
                meeting.hear(f"took {index - _NUM_BUFFERS}", mine)
            octets = buffers[index % _NUM_BUFFERS]
            fill(octets, bucket, coming)
            torch.cuda.synchronize(self._device)
            meeting.tell(
                f"filled {index}", str(checksum_of_bucket(octets, bucket)).encode() if self._checked else _UNCHECKED
            )
        for index in range(max(0, len(buckets) - _NUM_BUFFERS), len(buckets)):
            meeting.hear(f"took {index}", mine)
        meeting.hear("closed", mine)
        meeting.close()

    def _shared(self, meeting: Meeting, receivers: list[str], size_bytes: int) -> list[Tensor]:
        """Return new buffers that every receiver can open."""
        buffers = [torch.empty(size_bytes, dtype=torch.uint8, device=self._device) for _ in range(_NUM_BUFFERS)]
        for receiver in receivers:
            # torch counts who opened a buffer, so each gets handles of its own.
            meeting.tell(f"buffers for {receiver}", pickle.dumps([reduce_tensor(buffer) for buffer in buffers]))
        return buffers


class CudaIpcReceiver:
    """An engine's end, in the process that has the model."""

    def __init__(
        self, device: torch.device, *, bucket_bytes: int = BUCKET_BYTES, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Connect nothing before `tensors`; `bucket_bytes` must be that of the sender."""
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._place = MeetingPlace(timeout_s)

    def tensors(self, source: WeightSource, me: str) -> Iterator[tuple[str, Tensor]]:
        """Take what the rank on this GPU sends, as the receiver `me`; each tensor is a view, valid until the next is asked for.

        Raises:
            EngineError: the rank did not come, or was lost half-way.
        """
        gpu, about = _name_of(self._device), f"{source.publisher}/{source.serial}"
        meeting, _ = self._place.meet(source, me)
        meeting.tell("arrival", gpu.encode())
        handles = pickle.loads(meeting.hear(f"buffers for {me}", [gpu])[gpu])
        buffers: list[Tensor] = [rebuild(*on_device(arguments, self._device)) for rebuild, arguments in handles]
        for index, bucket in enumerate(split_into_buckets(source.tensors, self._bucket_bytes)):
            told, octets = meeting.hear(f"filled {index}", [gpu])[gpu], buffers[index % _NUM_BUFFERS]
            if told != _UNCHECKED:
                compare_bucket(octets, bucket, told, about=f"{about}: `{me}`")
            for spec in bucket:
                yield spec.name, view_of(spec, octets)
            torch.cuda.synchronize(self._device)
            meeting.tell(f"took {index}")
            del octets
        buffers.clear()
        meeting.tell("closed")


def on_device(arguments: Sequence[Any], device: torch.device) -> list[Any]:
    """Return the arguments of `rebuild_cuda_tensor` with the number that this process knows the GPU by, not the sender's."""
    number = torch.cuda.current_device() if device.index is None else device.index
    return [*arguments[:DEVICE_ARGUMENT], number, *arguments[DEVICE_ARGUMENT + 1 :]]


def _name_of(device: torch.device) -> str:
    return f"GPU {torch.cuda.get_device_properties(device).uuid}"
