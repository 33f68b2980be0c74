"""What an engine is told about new weights: plain data; the bytes go by the transport that it names."""

from dataclasses import dataclass
from enum import StrEnum


class Transport(StrEnum):
    """How the bytes travel."""

    SHARED_MEMORY = "shared_memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor in a buffer: its checkpoint name, shape, dtype (`float32`) and where its bytes start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where an engine finds a full set of weights, under the names of the Hugging Face checkpoint.

    Example: `WeightSource(transport="shared_memory", address="/proc/412/fd/9", size_bytes=3400000, tensors=(...))`.
    """

    transport: Transport
    address: str
    size_bytes: int
    tensors: tuple[TensorSpec, ...]
