"""Peak memory of this process since the last call."""

import contextlib
import os
import sys
from pathlib import Path


def take_peak_memory() -> float:
    """Return the peak since the last call in bytes, and reset it.

    On a GPU it is torch's allocation. Otherwise it is the resident memory of this process and its descendants, each at its own
    peak; shared memory counts for each.
    """
    torch = sys.modules.get("torch")  # without it nothing is on a GPU
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        peak_bytes = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return float(peak_bytes)
    return float(sum(_take_peak_of(pid) for pid in _family(os.getpid())))


def _take_peak_of(pid: int) -> int:
    """Return the high-water mark of a process, and reset it (`proc(5)`, `clear_refs`)."""
    with contextlib.suppress(OSError):  # it may have ended
        status = Path(f"/proc/{pid}/status").read_text()
        with contextlib.suppress(PermissionError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _family(pid: int) -> list[int]:
    """Return a process and all of its descendants."""
    family = [pid]
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in tasks.read_text().split():
                family += _family(int(child))
    return family
