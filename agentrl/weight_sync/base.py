"""What an engine is told about new weights: plain data; the bytes go by the transport that it names."""

from dataclasses import dataclass
from enum import StrEnum

WAIT_TIMEOUT_S = 120.0
"""For how long one side waits for the other; then it names who is missing."""


class Transport(StrEnum):
    """How the bytes travel."""

    IN_PROCESS = "in_process"
    SHARED_MEMORY = "shared_memory"
    CUDA_IPC = "cuda_ipc"
    BROADCAST = "broadcast"

    @property
    def is_stream(self) -> bool:
        """Whether the bytes are sent while engines take them, and are gone afterwards; otherwise they can be read again."""
        return self in (Transport.CUDA_IPC, Transport.BROADCAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor in a buffer: its checkpoint name, shape, dtype (`float32`) and where its bytes start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    written_in: int = 0
    """The `serial` with which its value came: an engine that has this one, or a later one, has the tensor."""
    checksum: int | None = None
    """Of its bytes (`checksum_of`); None: nobody asked for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraBase:
    """What products of LoRA's factors are added to. Example: `LoraBase(folder="models/base", scale=2.0)`."""

    folder: str
    """Of the model, where engines find its weights too."""
    scale: float
    """Multiplies every product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Where an engine finds a full set of weights, under the names of the Hugging Face checkpoint.

    Example: `WeightSource(transport="shared_memory", address="/proc/412/fd/9", size_bytes=3400000, tensors=(...))`.
    """

    transport: Transport
    address: str
    size_bytes: int
    tensors: tuple[TensorSpec, ...]
    publisher: str = ""
    """Whose `serial` it is: no two publishers have the same name."""
    serial: int = 0
    """Counts what the publisher has published."""
    receivers: tuple[str, ...] = ()
    """Of a stream: everybody who takes it, `engine 0/1` for the second process of the first engine."""
    receiver: str = ""
    """Of a stream: the engine that this copy of the record is for."""
    lora: LoraBase | None = None
    """Given: the tensors are only the factors of the weights that they change (`lora_factors`)."""
