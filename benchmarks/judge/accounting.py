"""Resources of a judge, read from `/proc`: CPU time and memory of the server itself and of everything below it."""

import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuTime:
    """CPU time so far, or between two moments, in seconds (the kernel counts it in ticks of 10 ms per process)."""

    server_s: float
    """The server's own process."""
    below_s: float
    """Everything it started: slots, launchers, and the programs themselves."""
    client_s: float
    """This process, which sends and receives."""
    others_s: float
    """The rest of the machine."""
    stolen_s: float
    """CPU time that a virtual machine's host gave to others while a core here had work; 0 without a host."""

    def __sub__(self, earlier: "CpuTime") -> "CpuTime":
        return CpuTime(
            server_s=self.server_s - earlier.server_s,
            below_s=self.below_s - earlier.below_s,
            client_s=self.client_s - earlier.client_s,
            others_s=self.others_s - earlier.others_s,
            stolen_s=self.stolen_s - earlier.stolen_s,
        )


def cpu_time(server: psutil.Process) -> CpuTime:
    """Return the CPU time of a server, everything below it and this process so far, ended programs included."""
    own = server.cpu_times()
    below_s = own.children_user + own.children_system
    for process in server.children(recursive=True):
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:  # its parent has its time by now
            continue
        below_s += times.user + times.system + times.children_user + times.children_system
    client_s = time.process_time()
    machine = psutil.cpu_times()
    busy_s = machine.user + machine.nice + machine.system + machine.irq + machine.softirq
    server_s = own.user + own.system
    return CpuTime(
        server_s=server_s,
        below_s=below_s,
        client_s=client_s,
        others_s=busy_s - server_s - below_s - client_s,
        stolen_s=machine.steal,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Memory at one moment, in bytes."""

    server_bytes: int
    """Resident size of the server's own process."""
    below_bytes: int
    """Everything it started, with each shared page counted once (the sum of proportional sizes)."""


def memory(server: psutil.Process) -> Memory:
    """Return the memory of a server and everything below it now."""
    below_bytes = 0
    for process in server.children(recursive=True):
        try:
            below_bytes += process.memory_full_info().pss
        except (psutil.NoSuchProcess, psutil.AccessDenied):  # it has just ended
            continue
    return Memory(server_bytes=server.memory_info().rss, below_bytes=below_bytes)
