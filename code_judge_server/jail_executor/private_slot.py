"""A slot that is not in the pool: for one long job, whose owner speaks to it itself."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from code_judge_server.jail.cgroups import Cgroups
from code_judge_server.jail_executor.meters import Meter
from code_judge_server.jail_executor.peak_memory import PeakMemory

_FILES = {
    1: ("memory", "memory.oom_control", "memory.max_usage_in_bytes"),
    2: ("", "memory.events", "memory.peak"),
}
"""By version of control groups: the controller, and its files of kills and of the peak."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSlot:
    """A fresh slot; whoever has it must `close` it."""

    end: socket.socket
    """The server's end of its socket, which does not block."""
    pidfd: int
    meter: Meter
    oom_kills: Callable[[], int]
    """Counts what the kernel has killed in it for want of memory; always 0 where memory is sampled."""
    peak: PeakMemory
    """Of memory; always 0 where memory is sampled."""

    def close(self) -> None:
        """Let go of it: the slot kills its job, and ends."""
        self.end.close()
        self.meter.close()
        self.peak.close()
        os.close(self.pidfd)


def kernel_counters(cgroups: Cgroups | None, number: int) -> tuple[Callable[[], int], PeakMemory]:
    """Return the two counters of a `PrivateSlot`."""
    if cgroups is None:
        return (lambda: 0), PeakMemory(None)
    controller, kills, peak = _FILES[cgroups.version]
    folder = cgroups.slot_folders(number)[controller]
    return (lambda: _counter(folder / kills)), PeakMemory(folder / peak)


def _counter(file: Path) -> int:
    words = file.read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
