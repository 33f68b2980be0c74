"""An engine's side of the weight sync, for all transports."""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from agentrl.errors import EngineDeadError, EngineError
from agentrl.weight_sync.base import Transport, WeightSource
from agentrl.weight_sync.tensor_layout import checksum_of
from agentrl.weight_sync.transports.broadcast import BroadcastReceiver
from agentrl.weight_sync.transports.cuda_ipc import CudaIpcReceiver
from agentrl.weight_sync.transports.folder import folder_weights
from agentrl.weight_sync.transports.in_process import offered_weights
from agentrl.weight_sync.transports.shared_memory import SharedMemoryReader


class WeightReceiver:
    """Reader of published weights in one process of an engine."""

    def __init__(self, device: torch.device, *, process: int = 0, builds_layers: bool = False) -> None:
        """Open nothing yet.

        Args:
            device: device of the engine.
            process: number of this process within the engine.
            builds_layers: the engine holds several tensors at once to build a whole layer.
        """
        self._process = process
        self._builds_layers = builds_layers
        self._reader = SharedMemoryReader()
        self._broadcast = BroadcastReceiver(device)
        self._cuda_ipc = CudaIpcReceiver(device)

    def prepare(self, source: WeightSource) -> None:
        """Check the weights before the old ones are overwritten; a stream cannot be checked in advance.

        Raises:
            EngineError: they cannot be read, or are not what was published.
        """
        if source.transport.is_stream:
            return
        views = self._views(source)
        for spec in source.tensors:
            if spec.checksum is not None and (checksum := checksum_of(views[spec.name])) != spec.checksum:
                raise EngineError(
                    f"weights at {source.address}: `{spec.name}` has the checksum {checksum:08x} and was published with "
                    f"{spec.checksum:08x}; something else writes to its memory, or its publisher went on too early"
                )

    def tensors(self, source: WeightSource) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors, as views: copy each before the next is requested.

        Raises:
            EngineDeadError: a stream broke off, and the engine has a mixture of weights.
            EngineError: the publisher is gone; nothing was yielded.
        """
        if source.transport.is_stream:
            yield from self._stream(source)
        else:
            views = self._views(source)
            yield from ((spec.name, views[spec.name]) for spec in source.tensors)

    def _views(self, source: WeightSource) -> Mapping[str, Tensor]:
        if source.transport == Transport.IN_PROCESS:
            return offered_weights(source)
        if source.transport == Transport.FOLDER:
            return folder_weights(source)
        return self._reader.views(source)

    def _stream(self, source: WeightSource) -> Iterator[tuple[str, Tensor]]:
        me = f"{source.receiver}/{self._process}"
        try:
            if source.transport == Transport.BROADCAST:
                yield from self._broadcast.tensors(source, me)
            elif not self._builds_layers:
                yield from self._cuda_ipc.tensors(source, me)
            else:  # the tensors of a layer are in several buckets, which are reused
                for name, tensor in self._cuda_ipc.tensors(source, me):
                    copy = tensor.clone()
                    del tensor  # a reference would keep its buffer alive
                    yield name, copy
        except EngineError as error:
            raise EngineDeadError(f"engine: new weights did not arrive whole: {error}") from error
