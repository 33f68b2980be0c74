"""Transfer of weights through memory that the processes of one machine share (`buffer`).

The memory is mapped once, and the next version overwrites the last: publish only when every engine has read the last one.
"""

import mmap
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.weight_sync.base import TensorSpec, Transport, WeightSource
from agentrl.weight_sync.tensor_layout import Form, checksum_of, lay_out, size_of, view_of
from agentrl.weight_sync.transports.buffer import new_buffer, open_buffer


class SharedMemoryPublisher:
    """Publisher of weights in memory that the engines of this machine map."""

    def __init__(self, *, checked: bool = True) -> None:
        """Create the empty buffer; `checked`: publish a checksum of every tensor, which engines verify."""
        self._checked = checked
        self._buffer = new_buffer()
        self._name = uuid.uuid4().hex
        self._serial = 0
        self._specs: tuple[TensorSpec, ...] = ()
        self._views: dict[str, Tensor] = {}

    @property
    def address(self) -> str:
        """Path of the buffer for other processes."""
        return f"/proc/{os.getpid()}/fd/{self._buffer.fileno()}"

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]]) -> WeightSource:
        """Copy one version of the weights over the last one; return its source, valid until the next one is written."""
        weights = dict(named_tensors)
        views = self.open({name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()})
        for name, tensor in weights.items():
            views[name].copy_(tensor.detach())
        return self.announce()

    def open(self, forms: Mapping[str, Form]) -> Mapping[str, Tensor]:
        """Return writable views of the weights."""
        specs = lay_out(forms)
        if [replace(spec, checksum=None) for spec in self._specs] != list(specs):
            self._views.clear()
            self._buffer.truncate(size_of(specs))
            self._specs, self._views = specs, write_views(self.address, specs)
        return self._views

    def announce(self) -> WeightSource:
        """Return the source of the weights, after all were written."""
        self._serial += 1
        if self._checked:
            self._specs = tuple(replace(spec, checksum=checksum_of(self._views[spec.name])) for spec in self._specs)
        return WeightSource(
            transport=Transport.SHARED_MEMORY,
            address=self.address,
            size_bytes=size_of(self._specs),
            tensors=self._specs,
            publisher=self._name,
            serial=self._serial,
        )

    def close(self) -> None:
        """Release the memory; engines that still map it keep their view."""
        self._views.clear()
        self._buffer.close()


def write_views(address: str, specs: tuple[TensorSpec, ...]) -> dict[str, Tensor]:
    """Map the buffer of a publisher, maybe in another process, for writing.

    Raises:
        OSError: the buffer cannot be reached from this process.
    """
    fd = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _views(_octets(fd, size_of(specs), mmap.ACCESS_WRITE), specs)
    finally:
        os.close(fd)


class SharedMemoryReader:
    """Reader that maps a publisher's buffer once for all versions, so that its pages stay warm."""

    def __init__(self) -> None:
        self._octets = torch.empty(0, dtype=torch.uint8)
        self._mapped: tuple[int, int, int] | None = None
        """Device and inode of the file, and the size of the map."""

    def views(self, source: WeightSource) -> dict[str, Tensor]:
        """Return the published tensors by name, as views that the next publish overwrites.

        Raises:
            EngineError: the publisher is gone, is on another machine, or has published something else since.
        """
        fd = open_buffer(source)
        try:
            status = os.fstat(fd)
            file = (status.st_dev, status.st_ino, status.st_size)
            if file != self._mapped:
                # Private and copy-on-write: torch asks for writable memory, and no write may reach the publisher.
                self._octets, self._mapped = _octets(fd, status.st_size, mmap.ACCESS_COPY), file
        finally:
            os.close(fd)
        return _views(self._octets, source.tensors)


def read_tensors(source: WeightSource) -> Iterator[tuple[str, Tensor]]:
    """Yield the published tensors, as `SharedMemoryReader.views` returns them."""
    yield from SharedMemoryReader().views(source).items()


def _octets(fd: int, size_bytes: int, access: int) -> Tensor:
    """Map a file, for as long as a view of the tensor lives."""
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(fd, size_bytes, access=access), dtype=torch.uint8)


def _views(octets: Tensor, specs: Iterable[TensorSpec]) -> dict[str, Tensor]:
    return {spec.name: view_of(spec, octets) for spec in specs}
