"""The most memory that a control group has had, from a moment on."""

import contextlib
import os
from pathlib import Path


class PeakMemory:
    """A peak that begins anew when told to; where the kernel cannot do that (version 2 before Linux 6.12), one of all time.

    Args:
        file: `memory.max_usage_in_bytes` (version 1) or `memory.peak` (version 2, not there before Linux 5.19); None where
            nothing counts it.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._fd = -1

    def restart(self) -> None:
        """Begin anew."""
        self.close()
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._fd, b"0")  # version 2 begins anew for this descriptor only

    def bytes(self) -> int:
        """Return it; 0 where nothing counts it."""
        if self._file is None:
            return 0
        with contextlib.suppress(OSError):
            return int(os.pread(self._fd, 64, 0) if self._fd >= 0 else self._file.read_bytes())
        return 0

    def close(self) -> None:
        """Close what it reads from."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
