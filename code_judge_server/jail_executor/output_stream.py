"""Output of a job, read from a pipe whose read end only the server has."""

import os

_READ_BYTES = 65536
"""Size of a pipe, so that one read mostly empties it."""


class OutputStream:
    """The read end of a pipe, and the output read from it."""

    __slots__ = ("_max_bytes", "_num_taken", "cut", "data", "fd")

    def __init__(self, fd: int, max_bytes: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.data = bytearray()
        self.cut = False
        """The output was longer than `max_bytes`."""
        self._max_bytes = max_bytes
        self._num_taken = 0

    def read(self) -> bool:
        """Read some of the pipe; return whether more may come, now or later."""
        return self._take() != 0

    def take_new_output(self) -> bytes:
        """Return the output since the last call."""
        start, self._num_taken = self._num_taken, len(self.data)
        return bytes(memoryview(self.data)[start:])

    def drain(self) -> None:
        """Read the rest of the pipe, which has no writer any more."""
        while (
            not self.cut and self._take()
        ):  # a short read may not be the last: a job can have put the pipe in packet mode
            pass

    def _take(self) -> int | None:
        """Return the number of bytes read, 0 if no writer is left, None if the pipe is empty."""
        try:
            chunk = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return None
        self.data += chunk
        if len(self.data) > self._max_bytes:
            del self.data[self._max_bytes :]
            self.cut = True
        return len(chunk)
