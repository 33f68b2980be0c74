"""Memory that weights are read from by other processes of the same machine: an anonymous file (`memfd_create`).

Others open it as `/proc/<pid>/fd/<n>`. It has no name in any file system, so it is gone with the process that made it, however
that ends, and nothing has to be cleaned up.
"""

import os
from io import FileIO

from agentrl.errors import EngineError
from agentrl.weight_sync.base import WeightSource

_FILE_NAME = "agentrl-weights"


def new_buffer() -> FileIO:
    """Return an empty one. The file, not its number, is what is to be kept: closing it twice closes nobody else's."""
    return FileIO(os.memfd_create(_FILE_NAME, os.MFD_CLOEXEC), "r+b")


def open_buffer(source: WeightSource) -> int:
    """Return a descriptor of the one that `source` is in, for reading.

    Raises:
        EngineError: the publisher is gone, is on another machine, or publishes something else by now.
    """
    try:
        # A process id is given out again after its process ended: the name shows whose file this is.
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
