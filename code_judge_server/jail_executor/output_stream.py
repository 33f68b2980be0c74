"""What a job prints, read from a pipe whose read end only the server has."""

import os

_READ_BYTES = 65536
"""What a pipe holds, so that one read empties it, unless its writer has widened it."""


class OutputStream:
    """The read end of a pipe, and what came through it."""

    __slots__ = ("_max_bytes", "cut", "data", "fd")

    def __init__(self, fd: int, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.data = bytearray()
        self.cut = False
        """There was more than `max_bytes`."""
        self._max_bytes = max_bytes

    def read(self) -> bool:
        """Take what is in the pipe; return whether there may be more, now or later."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self.data += chunk
        if len(self.data) > self._max_bytes:
            del self.data[self._max_bytes :]
            self.cut = True
        return bool(chunk)

    def drain(self) -> None:
        """Take what is left in the pipe, to which nobody writes any more."""
        before = -_READ_BYTES
        while len(self.data) - before >= _READ_BYTES and not self.cut:  # a job can have widened its pipe
            before = len(self.data)
            self.read()
