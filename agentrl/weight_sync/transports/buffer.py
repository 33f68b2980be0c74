"""Buffers that the processes of one machine share: anonymous files (`memfd_create`), opened as `/proc/<pid>/fd/<n>`.

They are in no file system, so they disappear with the process that created them, and nothing has to be cleaned up.
"""

import os
from io import FileIO

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource

_FILE_NAME = "agentrl-weights"


def new_buffer() -> FileIO:
    """Return an empty buffer. Keep the file, not its number: closing a number twice may close another file."""
    return FileIO(os.memfd_create(_FILE_NAME, os.MFD_CLOEXEC), "r+b")


def open_buffer(source: WeightSource) -> int:
    """Return a descriptor of the buffer of `source`, for reading.

    Raises:
        EngineError: the publisher is gone, is on another machine, or has published something else since.
    """
    try:
        # Process ids are reused: the name shows that the file is ours.
        if _FILE_NAME not in os.readlink(source.address):
            raise EngineError(f"weights at {source.address}: the process there is not the publisher; it must have died")
        fd = os.open(source.address, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise EngineError(
            f"weights at {source.address}: {error.strerror}; the publishing process is gone or is on another machine"
        ) from error
    size_bytes = os.fstat(fd).st_size
    if size_bytes < source.size_bytes:
        os.close(fd)
        raise EngineError(
            f"weights at {source.address}: {size_bytes} bytes where {source.size_bytes} were announced; "
            "load a version before the next one is published"
        )
    return fd
