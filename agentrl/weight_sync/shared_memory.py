"""Weights through memory that the processes of one machine share.

The publisher holds the memory (`buffer`), and others map it.

It is mapped once and stays warm. It is written again for the next version: begin only when every engine has read the last one.
What has not changed stays where it is.
"""

import mmap
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.weight_sync.base import TensorSpec, Transport, WeightSource
from agentrl.weight_sync.buffer import new_buffer, open_buffer
from agentrl.weight_sync.tensor_bytes import Form, checksum_of, lay_out, size_of, view_of


class SharedMemoryPublisher:
    """Has weights where the engines of this machine can map them."""

    def __init__(self, *, checked: bool = True) -> None:
        """Make the empty buffer.

        Args:
            checked: announce a checksum of every tensor, which engines then compare.
        """
        self._checked = checked
        self._buffer = new_buffer()
        self._name = uuid.uuid4().hex
        self._serial = 0
        self._specs: tuple[TensorSpec, ...] = ()
        self._views: dict[str, Tensor] = {}

    @property
    def address(self) -> str:
        """Where other processes find the buffer."""
        return f"/proc/{os.getpid()}/fd/{self._buffer.fileno()}"

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]]) -> WeightSource:
        """Copy one version of the weights over the last one; returns where they are, valid until the next one is written.

        Args:
            named_tensors: all of them, under the names of the Hugging Face checkpoint.
        """
        weights = dict(named_tensors)
        views = self.open({name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()})
        for name, tensor in weights.items():
            views[name].copy_(tensor.detach())
        return self.announce(weights)

    def open(self, forms: Mapping[str, Form]) -> Mapping[str, Tensor]:
        """Return views to write the weights through; they hold the last version, if that had the same names and forms."""
        specs = lay_out(forms)
        if [replace(spec, written_in=0, checksum=None) for spec in self._specs] != list(specs):
            self._views.clear()
            self._buffer.truncate(size_of(specs))
            self._specs, self._views = specs, write_views(self.address, specs)
        return self._views

    def announce(self, written: Collection[str]) -> WeightSource:
        """Return where the weights are, after those with the names `written` were written anew."""
        self._serial += 1
        self._specs = tuple(
            replace(
                spec,
                written_in=self._serial,
                checksum=checksum_of(self._views[spec.name]) if self._checked else None,
            )
            if spec.name in written
            else spec
            for spec in self._specs
        )
        return WeightSource(
            transport=Transport.SHARED_MEMORY,
            address=self.address,
            size_bytes=size_of(self._specs),
            tensors=self._specs,
            publisher=self._name,
            serial=self._serial,
        )

    def close(self) -> None:
        """Give the memory back; engines that still map it keep their view."""
        self._views.clear()
        self._buffer.close()


def write_views(address: str, specs: tuple[TensorSpec, ...]) -> dict[str, Tensor]:
    """Map the buffer of a publisher, which may be another process, to write to it.

    Raises:
        OSError: it cannot be reached from here.
    """
    fd = os.open(address, os.O_RDWR | os.O_CLOEXEC)
    try:
        return _views(_octets(fd, size_of(specs), mmap.ACCESS_WRITE), specs)
    finally:
        os.close(fd)


class SharedMemoryReader:
    """Maps what is published, once for all versions of one publisher, so that its pages are warm."""

    def __init__(self) -> None:
        """Map nothing yet."""
        self._octets = torch.empty(0, dtype=torch.uint8)
        self._mapped: tuple[int, int, int] | None = None
        """Device and inode of the file, and the size of the map."""

    def views(self, source: WeightSource) -> dict[str, Tensor]:
        """Return the published tensors by name, as views of the shared memory: copy what is to outlive the next publish.

        Raises:
            EngineError: the publisher is gone, is on another machine, or publishes something else by now.
        """
        fd = open_buffer(source)
        try:
            found = os.fstat(fd)
            file = (found.st_dev, found.st_ino, found.st_size)
            if file != self._mapped:
                # Private and copy-on-write: torch asks for writable memory, and no write may reach the publisher.
                self._octets, self._mapped = _octets(fd, found.st_size, mmap.ACCESS_COPY), file
        finally:
            os.close(fd)
        return _views(self._octets, source.tensors)


def read_tensors(source: WeightSource) -> Iterator[tuple[str, Tensor]]:
    """Yield the published tensors as `SharedMemoryReader.views` has them."""
    yield from SharedMemoryReader().views(source).items()


def _octets(fd: int, size_bytes: int, access: int) -> Tensor:
    """Map a file; it stays mapped for as long as a view of the tensor lives."""
    if size_bytes == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(mmap.mmap(fd, size_bytes, access=access), dtype=torch.uint8)


def _views(octets: Tensor, specs: Iterable[TensorSpec]) -> dict[str, Tensor]:
    return {spec.name: view_of(spec, octets) for spec in specs}
