"""Peak memory of a control group since a chosen moment."""

import contextlib
import os
from pathlib import Path


class PeakMemory:
    """A peak that can be reset; where the kernel cannot reset it (version 2 before Linux 6.12), the peak of all time.

    Args:
        file: `memory.max_usage_in_bytes` (version 1) or `memory.peak` (version 2, missing before Linux 5.19); None if nothing
            counts it.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._fd = -1

    def restart(self) -> None:
        """Reset the peak."""
        self.close()
        if self._file is None:
            return
        with contextlib.suppress(OSError):
            self._fd = os.open(self._file, os.O_RDWR | os.O_CLOEXEC)
            os.write(self._fd, b"0")  # version 2 resets it for this descriptor only

    def bytes(self) -> int:
        """Return the peak; 0 if nothing counts it."""
        if self._file is None:
            return 0
        with contextlib.suppress(OSError):
            return int(os.pread(self._fd, 64, 0) if self._fd >= 0 else self._file.read_bytes())
        return 0

    def close(self) -> None:
        """Close its file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
