"""A slot outside the pool, for one long job; its owner sends it messages directly."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from code_judge_server.jail.kernel.cgroups import Cgroups
from code_judge_server.jail_executor.meters import Meter, PeakMemory

_FILES = {
    1: ("memory", "memory.oom_control", "memory.max_usage_in_bytes"),
    2: ("", "memory.events", "memory.peak"),
}
"""Controller, file of the kills, and file of the peak, keyed by cgroup version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateSlot:
    """A fresh slot; its owner must `close` it."""

    end: socket.socket
    """The server's end of its socket, which does not block."""
    pidfd: int
    meter: Meter
    oom_kills: Callable[[], int]
    """Returns the number of OOM kills in the slot; always 0 where memory is sampled."""
    peak: PeakMemory
    """Peak memory; always 0 where memory is sampled."""

    def close(self) -> None:
        """Release it: the slot kills its job, and ends."""
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
