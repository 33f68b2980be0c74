"""Broadcast of weights from rank 0 of the actor to engines that have GPUs of their own, bucket by bucket.

NCCL on CUDA, gloo on CPU. The process group is separate from the actor's and the engines' own, and is kept as long as the
same processes take part. Tested on CPU; not yet run on GPUs.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WAIT_TIMEOUT_S, TensorSpec, WeightSource
from agentrl.weight_sync.rendezvous import Rendezvous
from agentrl.weight_sync.tensor_layout import size_of, split_into_buckets, view_of

BUCKET_BYTES = 256 * 2**20
"""Large enough that a broadcast costs little beyond its bytes, small beside a model."""
_SENDER = "rank 0 of the actor"
_BLOCKING_WAIT = "TORCH_NCCL_BLOCKING_WAIT"
_COME = b"come"


class BroadcastSender:
    """The sending end, on rank 0."""

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
        self._group = BroadcastGroup(device, timeout_s)

    def send(self, source: WeightSource, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Send all tensors of `source`, in its order; `weights` are taken one at a time.

        Raises:
            EngineError: a receiver did not arrive or was lost; the error names it.
        """
        rendezvous = Rendezvous(self._store, _about(source), me=_SENDER, timeout_s=self._timeout_s)
        try:
            rendezvous.wait("arrival", source.receivers)
        except EngineError as error:
            rendezvous.publish("word", str(error).encode())  # so that the others do not wait in vain
            raise
        rendezvous.publish("word", _COME)
        coming, octets = iter(weights), torch.empty(0, dtype=torch.uint8, device=self._device)
        try:
            group = self._group.of(source, 0, self._store)
            for bucket in split_into_buckets(source.tensors, self._bucket_bytes):
                if octets.numel() < size_of(bucket):
                    octets = torch.empty(size_of(bucket), dtype=torch.uint8, device=self._device)
                fill(octets, bucket, coming)
                group.broadcast(octets[: size_of(bucket)], 0).wait(timedelta(seconds=self._timeout_s))
            rendezvous.wait("receipt", source.receivers)
        except (RuntimeError, EngineError) as error:
            self._group.leave()
            raise EngineError(f"{error}; {self._lost(source)}") from error
        rendezvous.close()

    def close(self) -> None:
        """Leave the process group."""
        self._group.leave()

    def _lost(self, source: WeightSource) -> str:
        """Name the receivers that have taken the fewest buckets."""
        store = dist.PrefixStore(_about(source), self._store)  # pyright: ignore[reportPrivateImportUsage]
        keys = {name: f"bucket/{name}" for name in source.receivers}
        counts = {name: int(store.get(key)) if store.check([key]) else 0 for name, key in keys.items()}
        return "lost: " + ", ".join(name for name, count in counts.items() if count == min(counts.values()))


class BroadcastReceiver:
    """The receiving end, in an engine."""

    def __init__(
        self, device: torch.device, *, bucket_bytes: int = BUCKET_BYTES, timeout_s: float = WAIT_TIMEOUT_S
    ) -> None:
        """Take the settings; `bucket_bytes` must be the sender's."""
        self._device = device
        self._bucket_bytes = bucket_bytes
        self._timeout_s = timeout_s
        self._store = StoreConnection(timeout_s)
        self._group = BroadcastGroup(device, timeout_s)

    def tensors(self, source: WeightSource, me: str) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the sender broadcasts to the receiver `me`; views of memory that is not reused.

        Raises:
            EngineError: the sender did not arrive or was lost.
        """
        rendezvous, store = self._store.join(source, me)
        rendezvous.publish("arrival")
        [word] = rendezvous.wait("word", [_SENDER]).values()
        if word != _COME:
            raise EngineError(word.decode())
        for index, bucket in enumerate(split_into_buckets(source.tensors, self._bucket_bytes)):
            octets = torch.empty(size_of(bucket), dtype=torch.uint8, device=self._device)
            try:
                group = self._group.of(source, 1 + source.receivers.index(me), store)
                group.broadcast(octets, 0).wait(timedelta(seconds=self._timeout_s))
            except RuntimeError as error:
                self._group.leave()
                raise EngineError(f"weight sync {_about(source)}: `{me}` lost {_SENDER}: {error}") from error
            rendezvous.publish("bucket", str(index + 1).encode())
            for spec in bucket:
                yield spec.name, view_of(spec, octets)
        rendezvous.publish("receipt")


class BroadcastGroup:
    """The process group of the last sync, reused by the next one if the same processes take part."""

    def __init__(self, device: torch.device, timeout_s: float) -> None:
        self._device = device
        self._timeout = timedelta(seconds=timeout_s)
        self._members: tuple[str, ...] = ()
        self._group: dist.ProcessGroup | None = None

    def of(self, source: WeightSource, rank: int, store: Store) -> dist.ProcessGroup:
        """Return the group of the publisher and its receivers, with this process as `rank`; they meet at `store`."""
        members = (source.publisher, *source.receivers)
        if self._group is None or self._members != members:
            self.leave()
            own = dist.PrefixStore(f"group {_about(source)}", store)  # pyright: ignore[reportPrivateImportUsage]
            self._group = self._join(own, rank, len(members))
            self._members = members
        return self._group

    def leave(self) -> None:
        """Abort the group."""
        if self._group is not None:
            self._group.abort()
        self._group = None

    def _join(self, store: Store, rank: int, size: int) -> dist.ProcessGroup:
        group = dist.ProcessGroup(store, rank, size)
        if self._device.type == "cuda":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            with _failures_raise():
                backend = dist.ProcessGroupNCCL(store, rank, size, options)
            kind = dist.ProcessGroup.BackendType.NCCL
        else:
            backend = dist.ProcessGroupGloo(store, rank, size, timeout=self._timeout)
            kind = dist.ProcessGroup.BackendType.GLOO
        group._set_default_backend(kind)
        backend._set_sequence_number_for_group()
        group._register_backend(torch.device(self._device.type), kind, backend)
        return group


@contextlib.contextmanager
def _failures_raise() -> Iterator[None]:
    """Make NCCL groups that are created inside raise in `wait` when a peer is lost or late.

    Otherwise `wait` returns at once, and torch's watchdog ends the process: a lost engine would end the actor. A group reads
    the variable when it is created.
    """
    before = os.environ.get(_BLOCKING_WAIT)
    os.environ[_BLOCKING_WAIT] = "1"
    try:
        yield
    finally:
        os.environ.pop(_BLOCKING_WAIT)
        if before is not None:
            os.environ[_BLOCKING_WAIT] = before


class StoreConnection:
    """An engine's connection to the actor's store, which moves when the actor restarts."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._address = ""
        self._store: Store | None = None
        self._last: Rendezvous | None = None

    def join(self, source: WeightSource, me: str) -> tuple[Rendezvous, Store]:
        """Join the rendezvous of `source` as the receiver `me`, and close the one before; return it and its store."""
        if self._store is None or self._address != source.address:
            self._store, self._address, self._last = store_at(source.address, self._timeout_s), source.address, None
        if self._last is not None:
            self._last.close()
        self._last = Rendezvous(self._store, _about(source), me=me, timeout_s=self._timeout_s)
        return self._last, self._store


def store_at(address: str, timeout_s: float) -> Store:
    """Connect to the store that listens at `host:port`; raise `EngineError` if nobody answers."""
    host, _, port = address.rpartition(":")
    try:
        return dist.TCPStore(host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s))  # pyright: ignore[reportPrivateImportUsage]
    except dist.DistError as error:
        raise EngineError(
            f"weights at {address}: no answer in {timeout_s:g} s; the actor's first rank may be gone"
        ) from error


def fill(octets: Tensor, bucket: Iterable[TensorSpec], weights: Iterator[tuple[str, Tensor]]) -> None:
    """Copy the next tensors into a bucket, converted to their announced types."""
    for spec in bucket:
        name, tensor = next(weights)
        if name != spec.name:
            raise ValueError(f"weight sync: `{name}` came where `{spec.name}` was announced")
        view_of(spec, octets).copy_(tensor)


def _about(source: WeightSource) -> str:
    return f"{source.publisher}/{source.serial}"
