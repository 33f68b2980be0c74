"""Files with one JSON object per line that survive a kill at any moment.

A line is complete once its newline is written. Readers skip a torn last line of a killed writer, and the next writer cuts it
off. Several processes may append to one file.
"""

import fcntl
import json
import mmap
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import orjson

JsonObject = dict[str, Any]


def read_json_lines(path: Path) -> Iterator[JsonObject]:
    """Yield the objects of `path` in order; none for a missing file.

    Raises:
        ValueError: a complete line is not a JSON object; the message names the file and the line.
    """
    for number, line in enumerate(_complete_lines(path), start=1):
        yield decode_line(line, where=f"{path}:{number}")


def append_json_lines(path: Path, objects: Iterable[JsonObject]) -> None:
    """Append `objects` and force them to the disk; NaN and infinities become null.

    `objects` is consumed one by one, so a large step need not fit into memory as text. A missing file or folder is created.

    Raises:
        OSError: the disk is full or the file cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(_end_of_last_line(file))
        file.seek(0, os.SEEK_END)
        for item in objects:
            file.write(encode_line(item))
        file.flush()
        os.fsync(file.fileno())


def keep_json_lines(path: Path, keep: Callable[[JsonObject], bool]) -> None:
    """Rewrite `path` with only the lines that `keep` accepts, atomically; a missing file stays missing."""
    if not path.exists():
        return
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        for number, line in enumerate(_complete_lines(path), start=1):
            if keep(decode_line(line, where=f"{path}:{number}")):
                file.write(line)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def _complete_lines(path: Path) -> Iterator[bytes]:
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def _end_of_last_line(file: BinaryIO) -> int:
    if os.fstat(file.fileno()).st_size == 0:
        return 0
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return content.rfind(b"\n") + 1


def encode_line(item: JsonObject) -> bytes:
    """Return an object as a line, with its newline."""
    try:
        return orjson.dumps(item, default=str, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:
        # A policy can write half a surrogate pair ("\\ud800" in the JSON of a call), which has no UTF-8 form: orjson refuses
        # it, `json` escapes it. `json` cannot write NaN as null, so it must refuse NaN.
        return json.dumps(item, default=str, allow_nan=False).encode("ascii") + b"\n"


def decode_line(line: bytes, *, where: str) -> JsonObject:
    """Return the object that `encode_line` wrote; a `ValueError` names the place `where`."""
    try:
        item = orjson.loads(line)
    except orjson.JSONDecodeError:
        try:
            item = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{where}: not JSON ({error}); the file is damaged, repair or remove this line") from error
    if not isinstance(item, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(item).__name__}")
    return item
