"""Description of published weights, as plain data; the transport that it names carries the bytes."""

from dataclasses import dataclass
from enum import StrEnum

WAIT_TIMEOUT_S = 120.0
"""Limit for one side's wait for the other, after which an error names the missing processes."""


class Transport(StrEnum):
    """Way in which the bytes travel."""

    IN_PROCESS = "in_process"
    SHARED_MEMORY = "shared_memory"
    CUDA_IPC = "cuda_ipc"
    BROADCAST = "broadcast"
    FOLDER = "folder"
    """Safetensors files of a Hugging Face folder, which each engine reads itself."""

    @property
    def is_stream(self) -> bool:
        """True if the bytes are gone once the engines have taken them; otherwise they can be read repeatedly."""
        return self in (Transport.CUDA_IPC, Transport.BROADCAST)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """One tensor in a buffer: its checkpoint name, shape, dtype (`float32`) and where its bytes start."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset_bytes: int
    checksum: int | None = None
    """Checksum of its bytes (`checksum_of`); None if not computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraBase:
    """Weights that the products of LoRA's factors are added to. Example: `LoraBase(folder="models/base", scale=2.0)`."""

    folder: str
    """Folder of the model, readable by the engines too."""
    scale: float
    """Factor on every product."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightSource:
    """Location of a full set of weights, under the names of the Hugging Face checkpoint.

    Example: `WeightSource(transport="shared_memory", address="/proc/412/fd/9", size_bytes=3400000, tensors=(...))`.
    """

    transport: Transport
    address: str
    size_bytes: int
    tensors: tuple[TensorSpec, ...]
    publisher: str = ""
    """Unique name of the publisher that counts `serial`."""
    serial: int = 0
    """Number of this publication."""
    version: int = 0
    """`policy_version` of the weights."""
    node: str = ""
    """Ray node that the address belongs to."""
    receivers: tuple[str, ...] = ()
    """All receivers of a stream, such as `engine 0/1` for the second process of the first engine."""
    receiver: str = ""
    """The engine that this copy of the record is for, if the transport is a stream."""
    lora: LoraBase | None = None
    """If set, the tensors are only LoRA factors, to be merged into these weights (`lora_factors`)."""

    def is_for(self, engine: str) -> bool:
        """Return whether an engine may load them: a stream is only for its receivers."""
        return not self.transport.is_stream or f"{engine}/0" in self.receivers
