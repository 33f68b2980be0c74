"""Tensors as bytes: their places in a buffer, views of them, checksums."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.weight_sync.base import TensorSpec

ALIGNMENT_BYTES = 64
"""Distance at which tensors may start: a cache line; also a multiple of the size of every element type."""

Form = tuple[torch.Size, torch.dtype]
"""Shape and type of a tensor."""


def lay_out(forms: Mapping[str, Form]) -> tuple[TensorSpec, ...]:
    """Assign every tensor its place in one buffer, one after another."""
    specs: list[TensorSpec] = []
    for name, (shape, dtype) in forms.items():
        type_name, offset = str(dtype).removeprefix("torch."), _aligned(size_of(specs))
        specs.append(TensorSpec(name=name, shape=tuple(shape), dtype=type_name, offset_bytes=offset))
    return tuple(specs)


def split_into_buckets(specs: Iterable[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Cut a layout into consecutive buckets of at most `max_bytes`; offsets then count from the start of the bucket.

    A larger tensor gets a bucket of its own.
    """
    buckets: list[list[TensorSpec]] = []
    for spec in specs:
        placed = replace(spec, offset_bytes=_aligned(size_of(buckets[-1]))) if buckets else spec
        if not buckets or size_of([placed]) > max_bytes:
            buckets.append([])
            placed = replace(spec, offset_bytes=0)
        buckets[-1].append(placed)
    return buckets


def view_of(spec: TensorSpec, octets: Tensor) -> Tensor:
    """Return the tensor that a buffer (uint8, one dimension) holds at the place of `spec`, as a view."""
    return octets[spec.offset_bytes : size_of([spec])].view(getattr(torch, spec.dtype)).view(spec.shape)


def size_of(specs: Sequence[TensorSpec]) -> int:
    """Return the size of the buffer that a layout needs: the end of its last tensor."""
    if not specs:
        return 0
    last, dtype = specs[-1], getattr(torch, specs[-1].dtype)
    return last.offset_bytes + torch.Size(last.shape).numel() * dtype.itemsize


def checksum_of(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes; about a second for a gigabyte."""
    if tensor.numel() == 0:
        return 0
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
