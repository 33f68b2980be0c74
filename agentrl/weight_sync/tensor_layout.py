"""Tensors as bytes: their places in a buffer, views of them, checksums."""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from agentrl.weight_sync.base import TensorSpec

ALIGNMENT_BYTES = 64
"""A cache line; also a multiple of the size of every element type."""

Form = tuple[torch.Size, torch.dtype]
"""Shape and type of a tensor."""


def lay_out(forms: Mapping[str, Form]) -> tuple[TensorSpec, ...]:
    """Assign every tensor its place in one buffer, one after another."""
    specs, offset = [], 0
    for name, (shape, dtype) in forms.items():
        spec = TensorSpec(
            name=name, shape=tuple(shape), dtype=str(dtype).removeprefix("torch."), offset_bytes=aligned(offset)
        )
        specs.append(spec)
        offset = end_of(spec)
    return tuple(specs)


def split_into_buckets(specs: Iterable[TensorSpec], max_bytes: int) -> list[list[TensorSpec]]:
    """Cut a layout into consecutive buckets of at most `max_bytes`; offsets then count from the start of the bucket.

    A larger tensor gets a bucket of its own.
    """
    buckets: list[list[TensorSpec]] = []
    for spec in specs:
        offset = aligned(end_of(buckets[-1][-1])) if buckets else 0
        if not buckets or offset + num_bytes(spec) > max_bytes:
            buckets.append([])
            offset = 0
        buckets[-1].append(replace(spec, offset_bytes=offset))
    return buckets


def view_of(spec: TensorSpec, octets: Tensor) -> Tensor:
    """Return the tensor that a buffer (uint8, one dimension) holds at the place of `spec`, as a view."""
    part = octets[spec.offset_bytes : end_of(spec)]
    return part.view(dtype_of(spec)).view(spec.shape)


def num_bytes(spec: TensorSpec) -> int:
    """Return the size of a tensor."""
    return torch.Size(spec.shape).numel() * dtype_of(spec).itemsize


def end_of(spec: TensorSpec) -> int:
    """Return the offset at which the bytes of a tensor end."""
    return spec.offset_bytes + num_bytes(spec)


def size_of(specs: Sequence[TensorSpec]) -> int:
    """Return the size of the buffer that a layout needs."""
    return end_of(specs[-1]) if specs else 0


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """Return the type as torch's."""
    return getattr(torch, spec.dtype)


def checksum_of(tensor: Tensor) -> int:
    """Return the CRC-32 of a tensor's bytes; about a second for a gigabyte."""
    if tensor.numel() == 0:
        return 0
    return zlib.crc32(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def aligned(offset: int) -> int:
    """Return the next offset at which a tensor may start."""
    return -(-offset // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
