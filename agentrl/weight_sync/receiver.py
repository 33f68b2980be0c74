"""An engine's side of the weight sync, for all transports."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from agentrl.errors import EngineDeadError, EngineError
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.tensor_layout import checksum_of
from agentrl.weight_sync.transports.broadcast import BroadcastReceiver
from agentrl.weight_sync.transports.cuda_ipc import CudaIpcReceiver
from agentrl.weight_sync.transports.in_process import offered_weights
from agentrl.weight_sync.transports.shared_memory import SharedMemoryReader


class WeightReceiver:
    """Record of the weights that an engine has, and source of those that it lacks."""

    def __init__(self, device: torch.device, *, process: int = 0, only_changed: bool = True) -> None:
        """Start with no weights.

        Args:
            device: device of the engine.
            process: number of this process within the engine.
            only_changed: skip unchanged weights; not for an engine that rebuilds whole layers.
        """
        self._process = process
        self._only_changed = only_changed
        self._reader = SharedMemoryReader()
        self._broadcast = BroadcastReceiver(device)
        self._cuda_ipc = CudaIpcReceiver(device)
        self._publisher = ""
        self._serial = 0
        """Last publication of `_publisher` that the engine has."""

    def prepare(self, source: WeightSource) -> None:
        """Check the weights before the old ones are overwritten; a stream cannot be checked in advance.

        Raises:
            EngineError: they cannot be read, or are not what was published.
        """
        if source.transport.is_stream:
            return
        views = self._views(source)
        for spec in source.tensors:
            if spec.checksum is not None and self._lacks(source, spec.written_in):
                checksum = checksum_of(views[spec.name])
                if checksum != spec.checksum:
                    raise EngineError(
                        f"weights at {source.address}: `{spec.name}` has the checksum {checksum:08x} and was published with "
                        f"{spec.checksum:08x}; something else writes to its memory, or its publisher went on too early"
                    )

    def tensors(self, source: WeightSource) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors that the engine lacks, as views: copy each before the next is requested.

        The engine counts as up to date only after the last one.

        Raises:
            EngineDeadError: a stream broke off, and the engine has a mixture of weights.
            EngineError: the publisher is gone; nothing was yielded.
        """
        wanted = [spec.name for spec in source.tensors if self._lacks(source, spec.written_in)]
        views = {} if source.transport.is_stream else self._views(source)
        self.forget()
        yield from self._stream(source) if source.transport.is_stream else ((name, views[name]) for name in wanted)
        self._publisher, self._serial = source.publisher, source.serial

    def forget(self) -> None:
        """Record that the engine has no weights to keep."""
        self._publisher, self._serial = "", 0

    def _lacks(self, source: WeightSource, written_in: int) -> bool:
        may_skip = self._only_changed and source.publisher != "" and source.publisher == self._publisher
        return not may_skip or written_in > self._serial

    def _views(self, source: WeightSource) -> Mapping[str, Tensor]:
        if source.transport == Transport.IN_PROCESS:
            return offered_weights(source)
        return self._reader.views(source)

    def _stream(self, source: WeightSource) -> Iterator[tuple[str, Tensor]]:
        me = f"{source.receiver}/{self._process}"
        try:
            if source.transport == Transport.BROADCAST:
                yield from self._broadcast.tensors(source, me)
            elif self._only_changed:
                yield from self._cuda_ipc.tensors(source, me)
            else:  # whole layers are built from tensors of several buckets, which are reused
                for name, tensor in self._cuda_ipc.tensors(source, me):
                    copy = tensor.clone()
                    del tensor  # a reference would keep its buffer alive
                    yield name, copy
        except EngineError as error:
            raise EngineDeadError(f"engine: new weights did not arrive whole: {error}") from error
