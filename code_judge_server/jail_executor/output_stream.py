"""What a job prints, read from a pipe whose read end only the server has."""

import os

_READ_BYTES = 65536
"""What a pipe holds, so that one read mostly empties it."""


class OutputStream:
    """The read end of a pipe, and what came through it."""

    __slots__ = ("_max_bytes", "_num_told", "cut", "data", "fd")

    def __init__(self, fd: int, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.data = bytearray()
        self.cut = False
        """There was more than `max_bytes`."""
        self._max_bytes = max_bytes
        self._num_told = 0

    def read(self) -> bool:
        """Take some of what is in the pipe; return whether there may be more, now or later."""
        return self._take() != 0

    def take_untold(self) -> bytes:
        """Return what has come since the last call."""
        start, self._num_told = self._num_told, len(self.data)
        return bytes(memoryview(self.data)[start:])

    def drain(self) -> None:
        """Take what is left in the pipe, to which nobody writes any more."""
        while (
            not self.cut and self._take()
        ):  # a read may be short and not the last: a job can have put it in packet mode
            pass

    def _take(self) -> int | None:
        """Return the number of bytes taken, 0 if no writer is left, None if there is nothing now."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        self.data += chunk
        if len(self.data) > self._max_bytes:
            del self.data[self._max_bytes :]
            self.cut = True
        return len(chunk)
