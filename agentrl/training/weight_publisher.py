"""Publishing of the actor's weights from all ranks, without any rank holding the whole model.

In shared memory, every rank writes its own shards directly. If a rank is on another machine and cannot reach that memory,
tensors are gathered one at a time instead, as they are for streams.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate

from agentrl.training.parallel import Parallel, local_part, named_weights
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.tensor_layout import Form, lay_out, size_of
from agentrl.weight_sync.transports.broadcast import BroadcastSender
from agentrl.weight_sync.transports.cuda_ipc import CudaIpcSender, release_cached_memory
from agentrl.weight_sync.transports.in_process import InProcessPublisher
from agentrl.weight_sync.transports.shared_memory import SharedMemoryPublisher, write_views

if TYPE_CHECKING:
    from agentrl.training.model.lora import Adapters


class WeightPublishing:
    """One rank's part of publishing; all ranks must make the same calls in the same order."""

    def __init__(
        self,
        model: nn.Module,
        parallel: Parallel,
        *,
        dtype: torch.dtype,
        checked: bool,
        adapters: "Adapters | None" = None,
    ) -> None:
        """Take a model sharded by `Parallel.shard`; nothing is allocated before the first `publish`.

        `dtype` is that of the engines; `checked` publishes checksums. With `adapters` (LoRA) only their factors are sent, in
        float32, and engines merge them.
        """
        self._model = model
        self._parallel = parallel
        self._dtype = dtype if adapters is None else torch.float32
        self._adapters = adapters
        self._name = f"actor at {parallel.address}"
        self._in_process = InProcessPublisher()
        self._shared = _SharedShards(parallel, checked=checked)
        self._streams = {
            Transport.BROADCAST: BroadcastSender(parallel.store, parallel.device),
            Transport.CUDA_IPC: CudaIpcSender(parallel.store, parallel.device),
        }
        self._num_streams = 0

    @torch.no_grad()
    def publish(self, transport: Transport, receivers: Sequence[str] = ()) -> WeightSource | None:
        """Make the weights readable for engines, or announce them for `send` to all `receivers`.

        Returns:
            Source of the weights, valid until the next call; None on all ranks but 0. `in_process` is for a single rank.
        """
        weights = self._sharded()
        match transport:
            case Transport.IN_PROCESS:
                local = {name: _local(tensor) for name, tensor in weights.items()}
                source = self._in_process.publish(local)
            case Transport.SHARED_MEMORY:
                source = self._shared.publish(weights, self._forms(weights))
            case _:
                source = self._offer(transport, self._forms(weights), tuple(receivers))
        return source if source is None or self._adapters is None else replace(source, lora=self._adapters.base)

    @torch.no_grad()
    def send(self, source: WeightSource) -> None:
        """Send the weights that `publish` announced as a stream; every rank must be called, with rank 0's source.

        Raises:
            EngineError: a receiver did not arrive or was lost; the error names it.
        """
        weights = self._gathered()
        try:
            if source.transport != Transport.BROADCAST or self._parallel.rank == 0:
                self._streams[source.transport].send(source, weights)
        finally:
            # Gathering is collective: a rank that lost its receiver must not leave the others waiting.
            for _ in weights:
                pass
            release_cached_memory()  # buckets and gathered tensors

    def close(self) -> None:
        """Release the memory; the weights can no longer be read."""
        self._in_process.close()
        self._shared.close()

    def _sharded(self) -> dict[str, Tensor]:
        for module in self._model.modules():
            if isinstance(module, FSDPModule):  # a pass without gradients leaves gathered copies behind
                module.reshard()
        return dict(named_weights(self._model) if self._adapters is None else self._adapters.factors())

    def _forms(self, weights: Mapping[str, Tensor]) -> dict[str, Form]:
        return {
            name: (tensor.shape, self._dtype if tensor.is_floating_point() else tensor.dtype)
            for name, tensor in weights.items()
        }

    def _gathered(self) -> Iterator[tuple[str, Tensor]]:
        weights = self._sharded()
        for name, (_, dtype) in self._forms(weights).items():
            yield name, _whole(weights[name], dtype)

    def _offer(
        self, transport: Transport, forms: Mapping[str, Form], receivers: tuple[str, ...]
    ) -> WeightSource | None:
        self._num_streams += 1
        if self._parallel.rank != 0:
            return None
        specs = lay_out(forms)
        return WeightSource(
            transport=transport,
            address=self._parallel.address,
            size_bytes=size_of(specs),
            tensors=specs,
            publisher=self._name,
            serial=self._num_streams,
            receivers=receivers,
        )


class _SharedShards:
    """Shared memory of rank 0, into which every rank writes its shards."""

    def __init__(self, parallel: Parallel, *, checked: bool) -> None:
        self._parallel = parallel
        self._checked = checked
        self._publisher: SharedMemoryPublisher | None = None
        self._views: Mapping[str, Tensor] | None = None
        self._all_can_write = True

    def publish(self, weights: Mapping[str, Tensor], forms: Mapping[str, Form]) -> WeightSource | None:
        if self._views is None:
            self._open(forms)
        if self._all_can_write:
            self._write_shards(weights)
        else:
            for name, (_, dtype) in forms.items():
                whole = _whole(weights[name], dtype)
                if self._views:
                    self._views[name].copy_(whole)
        return None if self._publisher is None else self._publisher.announce()

    def close(self) -> None:
        self._views = None
        if self._publisher is not None:
            self._publisher.close()

    def _open(self, forms: Mapping[str, Form]) -> None:
        if self._parallel.rank == 0:
            self._publisher = SharedMemoryPublisher(checked=self._checked)
            self._views = self._publisher.open(forms)
        addresses = [None if self._publisher is None else self._publisher.address]
        dist.broadcast_object_list(addresses, src=0, device=torch.device("cpu"))
        if self._parallel.rank != 0:
            try:
                self._views = write_views(str(addresses[0]), lay_out(forms))
            except OSError:
                self._views = {}
        [any_unreachable] = self._parallel.max([float(not self._views and bool(forms))])
        self._all_can_write = any_unreachable == 0
        if not self._all_can_write and self._parallel.rank != 0:
            self._views = {}

    def _write_shards(self, weights: Mapping[str, Tensor]) -> None:
        assert self._views is not None
        for name, tensor in weights.items():
            if (part := _own_part(tensor, is_first=self._parallel.rank == 0)) is not None:
                self._views[name][part].copy_(_local(tensor))
        self._parallel.barrier()  # rank 0 announces what all have written


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor.detach()


def _whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a whole tensor, gathered in `dtype` if it is sharded, so that ranks send no more than needed."""
    if not isinstance(tensor, DTensor):
        return tensor.detach()
    if tensor.device_mesh.size() == 1:
        return tensor.to_local()
    converted = tensor.to(dtype)
    assert isinstance(converted, DTensor)
    return converted.full_tensor()


def _own_part(tensor: Tensor, *, is_first: bool) -> tuple[slice, ...] | None:
    """Return the slices of this rank's part; None if another rank has the same part and writes it."""
    if not isinstance(tensor, DTensor):
        return local_part(tensor)[1] if is_first else None
    coordinates = tensor.device_mesh.get_coordinate() or ()
    is_copy = any(
        place for place, placed in zip(coordinates, tensor.placements, strict=True) if isinstance(placed, Replicate)
    )
    return None if is_copy else local_part(tensor)[1]
