"""Files of frames that survive a kill at any byte: each frame is a record in three parts.

    header (24 bytes)   magic and version, kind, sizes of the parts, CRC-32 of the parts
    head                JSON object with the facts that lists and filters need, uncompressed
    tokens, text        compressed by zstd

A reader of heads skips the other parts. A frame is complete once all its bytes are written: readers stop at a torn last frame
of a killed writer, and the next writer cuts it off. Several processes may append to one file.
"""

import fcntl
import mmap
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import zstandard

_HEADER = struct.Struct("<4sIIIII")
_MAGIC = b"ATR1"
_LEVEL = 3
"""Level 9 takes four times as long and saves a twentieth."""


class FrameKind(IntEnum):
    """Record that a frame holds."""

    PROMPT = 0
    TRAJECTORY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """One frame of an open file; the parts are read when asked for, while the file is open."""

    kind: FrameKind
    offset: int
    _sizes: tuple[int, int, int]
    _crc: int
    _data: mmap.mmap

    @property
    def end(self) -> int:
        """Offset of the next frame."""
        return self.offset + _HEADER.size + sum(self._sizes)

    @property
    def checksum(self) -> int:
        """CRC-32 of the parts."""
        return self._crc

    @property
    def head(self) -> bytes:
        """JSON object."""
        start = self.offset + _HEADER.size
        return self._data[start : start + self._sizes[0]]

    def parts(self) -> tuple[bytes, bytes]:
        """Return tokens and text, decompressed.

        Raises:
            ValueError: the frame is damaged.
        """
        start = self.offset + _HEADER.size
        payload = self._data[start : self.end]
        if zlib.crc32(payload) != self._crc:
            raise ValueError(f"frame at byte {self.offset}: its checksum differs. The file is damaged")
        head_size, tokens_size, _ = self._sizes
        decompress = zstandard.ZstdDecompressor().decompress
        middle = head_size + tokens_size
        return decompress(payload[head_size:middle]), decompress(payload[middle:])

    def text(self) -> bytes:
        """Return the text alone, decompressed, without a check of the frame."""
        end = self.end
        return zstandard.ZstdDecompressor().decompress(self._data[end - self._sizes[2] : end])


class FrameEncoder:
    """Encodes frames; for one thread."""

    def __init__(self) -> None:
        self.compress = zstandard.ZstdCompressor(level=_LEVEL).compress

    def encode(self, kind: FrameKind, *, head: bytes, tokens: bytes, text: bytes) -> bytes:
        """Return the bytes of a frame."""
        parts = (head, self.compress(tokens), self.compress(text))
        payload = b"".join(parts)
        return _HEADER.pack(_MAGIC, kind, *map(len, parts), zlib.crc32(payload)) + payload


def append_frames(path: Path, frames: Iterable[bytes]) -> None:
    """Append encoded `frames` and force them to the disk; a missing file or folder is created.

    `frames` is consumed one by one, so a large step need not fit into memory.

    Raises:
        OSError: the disk is full or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(_end_of_last_frame(path))
        file.seek(0, os.SEEK_END)
        for frame in frames:
            file.write(frame)
        file.flush()
        os.fsync(file.fileno())


def read_frames(path: Path, *, start: int = 0) -> Iterator[Frame]:
    """Yield the complete frames from byte `start` on; none for a missing file.

    A frame's parts can be read until the iteration goes on.

    Raises:
        ValueError: the file is none of these.
    """
    if not path.exists() or path.stat().st_size <= start:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != _MAGIC[: len(data)]:
            raise ValueError(f"{path}: not a trajectory file of this release")
        while (frame := _frame_at(data, start)) is not None:
            yield frame
            start = frame.end


def _frame_at(data: mmap.mmap, offset: int) -> Frame | None:
    if offset + _HEADER.size > len(data):
        return None
    magic, kind, head_size, tokens_size, text_size, crc = _HEADER.unpack_from(data, offset)
    sizes = (head_size, tokens_size, text_size)
    if magic != _MAGIC or offset + _HEADER.size + sum(sizes) > len(data):
        return None
    return Frame(kind=FrameKind(kind), offset=offset, _sizes=sizes, _crc=crc, _data=data)


def _end_of_last_frame(path: Path) -> int:
    end = 0
    for frame in read_frames(path):
        end = frame.end
    return end
