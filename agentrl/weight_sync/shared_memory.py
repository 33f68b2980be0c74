"""Weights through memory that two processes of one machine share.

The publisher holds an anonymous file (`memfd_create`) and engines open it as `/proc/<pid>/fd/<n>`. It has no name in any
file system, so it is gone with the publisher, however that ends, and nothing has to be cleaned up.

The buffer is used again for the next version: publish only when every engine has read the last one.
"""

import mmap
import os
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from agentrl.errors import EngineError
from agentrl.weight_sync.base import TensorSpec, Transport, WeightSource

_FILE_NAME = "agentrl-weights"
_ALIGNMENT_BYTES = 64
"""A cache line; also a multiple of the size of every element type."""
_MAX_WRITE_BYTES = 2**30
"""Linux writes at most 2 GiB in one call."""


class SharedMemoryPublisher:
    """Writes weights where the engines of this machine can map them."""

    def __init__(self) -> None:
        """Make the empty buffer."""
        self._fd = os.memfd_create(_FILE_NAME, os.MFD_CLOEXEC)

    def publish(self, named_tensors: Iterable[tuple[str, Tensor]]) -> WeightSource:
        """Write one version of the weights over the last one.

        Args:
            named_tensors: CPU tensors under the names of the Hugging Face checkpoint; taken one at a time, so that a
                generator which gathers them needs memory for one.

        Returns:
            Where they are, valid while this publisher lives and until its next `publish`.
        """
        specs, offset = [], 0
        for name, tensor in named_tensors:
            spec = TensorSpec(
                name=name,
                shape=tuple(tensor.shape),
                dtype=str(tensor.dtype).removeprefix("torch."),
                offset_bytes=offset,
            )
            self._write(tensor, offset)
            specs.append(spec)
            offset = _aligned(offset + tensor.nbytes)
        os.ftruncate(self._fd, offset)
        return WeightSource(
            transport=Transport.SHARED_MEMORY,
            address=f"/proc/{os.getpid()}/fd/{self._fd}",
            size_bytes=offset,
            tensors=tuple(specs),
        )

    def close(self) -> None:
        """Give the memory back; engines that still map it keep their view."""
        os.close(self._fd)

    def _write(self, tensor: Tensor, offset: int) -> None:
        octets = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        written = 0
        while written < len(octets):
            written += os.pwrite(self._fd, octets[written : written + _MAX_WRITE_BYTES], offset + written)


def read_tensors(source: WeightSource) -> Iterator[tuple[str, Tensor]]:
    """Yield the published tensors by name, as views of the shared memory: copy what is to outlive the next publish.

    Raises:
        EngineError: the publisher is gone, is on another machine, or publishes something else by now.
    """
    shared = _map(source)
    for spec in source.tensors:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        num_elements = torch.Size(spec.shape).numel()
        if num_elements == 0:
            yield spec.name, torch.empty(spec.shape, dtype=dtype)
            continue
        flat = torch.frombuffer(shared, dtype=dtype, count=num_elements, offset=spec.offset_bytes)
        yield spec.name, flat.view(spec.shape)


def _map(source: WeightSource) -> mmap.mmap:
    try:
        # A process id is given out again after its process ended: the name shows whose file this is.
        if _FILE_NAME not in os.readlink(source.address):
            raise EngineError(f"weights at {source.address}: the process there is not the publisher; it must have died")
        fd = os.open(source.address, os.O_RDONLY)
    except OSError as error:
        raise EngineError(
            f"weights at {source.address}: {error.strerror}; the publishing process is gone or is on another machine"
        ) from error
    try:
        size_bytes = os.fstat(fd).st_size
        if size_bytes < source.size_bytes or size_bytes == 0:
            raise EngineError(
                f"weights at {source.address}: {size_bytes} bytes where {source.size_bytes} were announced; "
                "load a version before the next one is published"
            )
        # Private and copy-on-write: torch asks for writable memory, and no write may reach the publisher.
        return mmap.mmap(fd, source.size_bytes, access=mmap.ACCESS_COPY)
    finally:
        os.close(fd)


def _aligned(offset: int) -> int:
    return -(-offset // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
