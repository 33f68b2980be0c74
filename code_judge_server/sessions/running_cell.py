"""One cell in a session: its input, its output, and its limits."""

import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from code_judge_server.jail_executor.meters import Usage
from code_judge_server.jail_executor.private_slot import PrivateSlot
from code_judge_server.jail_executor.running_job import OutputStream
from code_judge_server.jail_executor.sealed_files import seal, with_names
from code_judge_server.sandbox.executor import JobLimits, Outcome, Spent
from code_judge_server.sandbox.outcome import Ending
from code_judge_server.sessions.cell_report import CellReport, read_files, read_report
from code_judge_server.sessions.schemas import CellRequest

SAMPLE_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class CellEnd:
    """End of a cell: the facts, and the report of the session's own process."""

    outcome: Outcome
    report: CellReport


class RunningCell:
    """A cell from its start until its end, in the one event loop; its CPU time goes to `spent` meanwhile."""

    def __init__(
        self,
        slot: PrivateSlot,
        cell: CellRequest,
        limits: JobLimits,
        *,
        collect_bytes: int,
        max_chars: int,
        has_ended: Callable[[], bool],
        kill: Callable[[], None],
        spent: Spent,
    ) -> None:
        self.ending: Ending | None = None
        """Reason for which it was told to end, if it was."""
        self._slot = slot
        self._cell = cell
        self._collect_bytes = collect_bytes
        self._limits = limits
        self._max_chars = max_chars
        self._has_ended = has_ended
        self._kill = kill
        self._spent = spent
        self._loop = asyncio.get_running_loop()
        self._streams: list[OutputStream] = []
        self._result = self._collected = -1
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = time.monotonic()
        self._peak_memory_bytes = 0
        self._usage_before = Usage(cpu_time_s=0.0)
        self._oom_kills_before = 0

    def send(self, send: Callable[[tuple[int, ...]], None]) -> None:
        """Send the cell to the session.

        Raises:
            OSError: no memory or no descriptors are left, or the session has ended.
        """
        self._slot.meter.restart()  # the counts are those of the cell before
        self._usage_before = self._usage()
        self._oom_kills_before = self._slot.oom_kills()
        self._slot.peak.restart()
        self._spent.read_running_s = self._cpu_time_so_far_s
        self._result = os.memfd_create("result", os.MFD_CLOEXEC)
        self._collected = os.memfd_create("collected", os.MFD_CLOEXEC)
        cell = self._cell
        descriptors: list[int] = []
        try:
            files = seal("files", with_names(cell.files, cell.collect))
            descriptors += (files, seal("code", [cell.code.encode()]), seal("stdin", [cell.stdin.encode()]))
            for _ in range(2):
                read, write = os.pipe()
                descriptors.append(write)
                self._streams.append(OutputStream(read, self._limits.output_bytes))
            send((*descriptors[1:], self._result, files, self._collected))
        finally:
            for fd in descriptors:
                os.close(fd)
        for stream in self._streams:
            self._loop.add_reader(stream.fd, self._on_output, stream)
        self._timer = self._loop.call_later(SAMPLE_INTERVAL_S, self._look)

    def kill(self, reason: Ending) -> None:
        """Let it end for this reason; only the first reason counts, and none after its end, which may be known late."""
        if self.ending is None and not self._has_ended():
            self.ending = reason
            self._kill()

    def finish(self, *, exit_code: int | None, signal: int | None, reported_wall_time_s: float) -> CellEnd:
        """Return the end of a cell of which nothing is left."""
        wall_time_s = time.monotonic() - self._started_at
        if self.ending is None:
            wall_time_s = min(wall_time_s, reported_wall_time_s)
        for stream in self._streams:
            stream.drain()
        usage = self._usage()  # a cell that ended before the first sample has at least left its snapshot
        cpu_time_s = self._cpu_time_s(usage)
        report = read_report(self._result, max_chars=self._max_chars)
        files, files_cut = read_files(self._collected, report, self._cell.collect, max_bytes=self._collect_bytes)
        stdout, stderr = self._streams
        ending = self.ending or Ending.EXITED
        if ending is Ending.EXITED and (stdout.cut or stderr.cut):
            ending = Ending.OUTPUT
        elif self._slot.oom_kills() > self._oom_kills_before:
            ending = Ending.MEMORY
        elif ending is Ending.EXITED and cpu_time_s > self._limits.cpu_time_s:
            ending = Ending.CPU_TIME
        elif ending is Ending.EXITED and wall_time_s > self._limits.wall_time_s:
            ending = Ending.WALL_TIME
        outcome = Outcome(
            ending=ending,
            exit_code=exit_code,
            signal=signal,
            stdout=bytes(stdout.data),
            stderr=bytes(stderr.data),
            stdout_cut=stdout.cut,
            stderr_cut=stderr.cut,
            cpu_time_s=cpu_time_s,
            wall_time_s=wall_time_s,
            peak_memory_bytes=max(self._peak_memory_bytes, usage.measured_bytes, self._slot.peak.bytes()),
            files=files,
            files_cut=files_cut,
        )
        return CellEnd(outcome=outcome, report=report)

    def close(self) -> None:
        """Close its pipes and files."""
        self._spent.read_running_s = None
        if self._timer is not None:
            self._timer.cancel()
        for stream in self._streams:
            self._loop.remove_reader(stream.fd)
            os.close(stream.fd)
        self._streams = []
        for descriptor in (self._result, self._collected):
            if descriptor >= 0:
                os.close(descriptor)
        self._result = self._collected = -1

    def _on_output(self, stream: OutputStream) -> None:
        if not stream.read():
            self._loop.remove_reader(stream.fd)
        if stream.cut:
            self.kill(Ending.OUTPUT)

    def _look(self) -> None:
        try:
            limits, usage, oom_kills = self._limits, self._usage(), self._slot.oom_kills()
        except OSError:
            return  # its session has just been closed
        self._timer = self._loop.call_later(SAMPLE_INTERVAL_S, self._look)
        self._peak_memory_bytes = max(self._peak_memory_bytes, usage.measured_bytes)
        if usage.memory_bytes > limits.memory_bytes or oom_kills > self._oom_kills_before:
            self.kill(Ending.MEMORY)
        elif usage.num_tasks > limits.max_tasks:
            self.kill(Ending.TASKS)
        elif self._cpu_time_s(usage) > limits.cpu_time_s:
            self.kill(Ending.CPU_TIME)
        elif time.monotonic() - self._started_at > limits.wall_time_s:
            self.kill(Ending.WALL_TIME)

    def _cpu_time_so_far_s(self) -> float:
        try:
            return self._cpu_time_s(self._usage())
        except OSError:
            return 0.0  # its session has just been closed

    def _usage(self) -> Usage:
        return self._slot.meter.read(memory_bytes=self._limits.memory_bytes, max_tasks=self._limits.max_tasks)

    def _cpu_time_s(self, usage: Usage) -> float:
        return max(0.0, usage.cpu_time_s - self._usage_before.cpu_time_s)
