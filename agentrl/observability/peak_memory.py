"""The most memory that this process has had since somebody last asked."""

import contextlib
import os
import sys
from pathlib import Path


def take_peak_memory() -> float:
    """Return the peak since the last call, in bytes, and begin anew.

    On a GPU: what torch allocated there. Otherwise: resident memory of this process and those below it, each at its own peak;
    memory that several of them share counts for each.
    """
    torch = sys.modules.get("torch")  # a process that has not loaded it has nothing on a GPU
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        peak_bytes = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return float(peak_bytes)
    return float(sum(_take_peak_of(pid) for pid in _family(os.getpid())))


def _take_peak_of(pid: int) -> int:
    """Return the high-water mark of a process, which Linux sets back when it is told so (`proc(5)`, `clear_refs`)."""
    with contextlib.suppress(OSError):  # it may just have ended
        status = Path(f"/proc/{pid}/status").read_text()
        with contextlib.suppress(PermissionError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _family(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    found = [pid]
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in tasks.read_text().split():
                found += _family(int(child))
    return found
