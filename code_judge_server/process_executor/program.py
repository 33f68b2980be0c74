"""Run one command under limits, collect its output and resources, and kill everything it started.

The ending is decided by the wait status, CPU time and memory as counted by the kernel, bytes read from pipes that this process
owns, and the clock; never by the program's output.

CPU time and memory are those of the whole tree, read every `SAMPLE_INTERVAL_S`; the rlimits of `spawn` catch excesses that a
busy machine misses.
"""

import math
import os
import select
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from code_judge_server.jail.kernel import orphans
from code_judge_server.process_executor import frames
from code_judge_server.process_executor.program_user import ProgramUser
from code_judge_server.process_executor.spawn import spawn
from code_judge_server.sandbox import process_tree
from code_judge_server.sandbox.job_pairs import PipeEnds, bytes_in_pipe
from code_judge_server.sandbox.outcome import Ending, JobLimits, Outcome

SAMPLE_INTERVAL_S = 0.02
_READ_BYTES = 65536
_LATENESS_S = 0.1
"""Delay with which this process may notice the end of a command on a busy machine."""


def run_command(
    argv: list[str],
    *,
    folder: str,
    stdin: int,
    partner: PipeEnds | None = None,
    limits: JobLimits,
    control: socket.socket,
    on_output: Callable[[str, bytes], None] | None = None,
    user: ProgramUser | None = None,
) -> Outcome:
    """Run `argv` in `folder` until it ends, exceeds a limit, or a message arrives on `control`, which is consumed. The pipes of
    a `partner` stand in place of stdin and stdout, and are closed here; the outcome then has no stdout. `on_output` is called
    with `stdout` or `stderr` and a piece of that output.

    Raises:
        OSError: the command cannot be started. Nothing keeps running in any case.
    """
    stdout_read, stdout_write = os.pipe()
    stderr_read, stderr_write = os.pipe()
    unread = None if partner is None else os.dup(partner.stdin)
    try:
        try:
            started_at = time.monotonic()
            read_from, printed_to = (stdin, stdout_write) if partner is None else (partner.stdin, partner.stdout)
            process = spawn(
                argv, folder=folder, stdin=read_from, stdout=printed_to, stderr=stderr_write, limits=limits, user=user
            )
        finally:
            if partner is not None:  # so that the other job sees when the command closes its ends
                partner.close()
            os.close(stdout_write)
            os.close(stderr_write)
        outcome = _Watch(process, stdout_read, stderr_read, limits, control, started_at, on_output).outcome()
        return outcome if unread is None else replace(outcome, stdin_left_bytes=bytes_in_pipe(unread))
    finally:
        for end in (stdout_read, stderr_read, unread):
            if end is not None:
                os.close(end)


class _Watch:
    """One running command, from its start until nothing of it is left."""

    def __init__(
        self,
        process: subprocess.Popen[Any],
        stdout: int,
        stderr: int,
        limits: JobLimits,
        control: socket.socket,
        started_at: float,
        on_output: Callable[[str, bytes], None] | None,
    ) -> None:
        self._process = process
        self._output = {stdout: bytearray(), stderr: bytearray()}
        self._cut = {stdout: False, stderr: False}
        self._names = {stdout: "stdout", stderr: "stderr"}
        self._on_output = on_output
        self._limits = limits
        self._control = control
        self._started_at = started_at
        self._wait_status: int | None = None
        self._reaped_cpu_s = 0.0
        self._peak_memory_bytes = 0

    def outcome(self) -> Outcome:
        try:
            pidfd = os.pidfd_open(self._process.pid)
            try:
                ending = self._wait(pidfd)
                waited_s = time.monotonic() - self._started_at
            finally:
                os.close(pidfd)
        finally:
            self._end_everything()
        wall_time_s = time.monotonic() - self._started_at
        self._drain()
        if ending is Ending.EXITED:
            ending = self._judged_by_totals(waited_s)
        stdout, stderr = (bytes(output) for output in self._output.values())
        stdout_cut, stderr_cut = self._cut.values()
        exit_code = self._process.returncode
        return Outcome(
            ending=ending,
            exit_code=exit_code if exit_code >= 0 else None,
            signal=-exit_code if exit_code < 0 else None,
            stdout=stdout,
            stderr=stderr,
            stdout_cut=stdout_cut,
            stderr_cut=stderr_cut,
            cpu_time_s=self._reaped_cpu_s,
            wall_time_s=wall_time_s,
            peak_memory_bytes=self._peak_memory_bytes,
        )

    def _wait(self, pidfd: int) -> Ending:
        poller = select.poll()
        for fd in (pidfd, self._control.fileno(), *self._output):
            poller.register(fd, select.POLLIN)
        deadline = self._started_at + self._limits.wall_time_s
        sample_at = self._started_at + SAMPLE_INTERVAL_S
        while True:
            timeout_s = min(deadline, sample_at) - time.monotonic()
            for fd, _ in poller.poll(max(0, math.ceil(timeout_s * 1000))):
                if fd == pidfd:
                    return Ending.EXITED
                if fd == self._control.fileno():
                    frames.receive(self._control)
                    return Ending.CANCELLED
                if not self._read(fd):
                    poller.unregister(fd)
                if self._cut[fd]:
                    return Ending.OUTPUT
            now = time.monotonic()
            if now >= deadline:
                return Ending.WALL_TIME
            if now >= sample_at:
                sample_at = now + SAMPLE_INTERVAL_S
                if (ending := self._sample()) is not None:
                    return ending

    def _read(self, fd: int) -> bool:
        """Read some of a pipe; return whether more may come."""
        output = self._output[fd]
        num_before = len(output)
        chunk = os.read(fd, _READ_BYTES)
        output += chunk
        if len(output) > self._limits.output_bytes:
            del output[self._limits.output_bytes :]
            self._cut[fd] = True
        if self._on_output is not None and len(output) > num_before:
            self._on_output(self._names[fd], bytes(output[num_before:]))
        return bool(chunk)

    def _drain(self) -> None:
        """Read the rest of the pipes, which have no writer any more."""
        for fd in self._output:
            while self._read(fd):
                pass

    def _sample(self) -> Ending | None:
        self._reap()
        pids = process_tree.descendants(os.getpid(), at_most=self._limits.max_tasks + 1)
        usage = process_tree.usage(pids)
        memory_bytes = usage.memory_bytes
        if memory_bytes > self._limits.memory_bytes and len(pids) > 1:
            memory_bytes = process_tree.proportional_memory_bytes(pids, enough=self._limits.memory_bytes)
        self._peak_memory_bytes = max(self._peak_memory_bytes, memory_bytes)
        if usage.num_tasks > self._limits.max_tasks:
            return Ending.TASKS
        if memory_bytes > self._limits.memory_bytes:
            return Ending.MEMORY
        if self._reaped_cpu_s + usage.cpu_time_s > self._limits.cpu_time_s:
            return Ending.CPU_TIME
        return None

    def _judged_by_totals(self, waited_s: float) -> Ending:
        """Return the ending of a command that ended by itself, perhaps beyond a limit that no sample had seen."""
        if any(self._cut.values()):
            return Ending.OUTPUT
        if self._peak_memory_bytes > self._limits.memory_bytes:
            return Ending.MEMORY
        if self._reaped_cpu_s > self._limits.cpu_time_s:
            return Ending.CPU_TIME
        if waited_s > self._limits.wall_time_s + _LATENESS_S:
            return Ending.WALL_TIME
        return Ending.EXITED

    def _end_everything(self) -> None:
        if self._wait_status is None:  # otherwise another group may have its number
            process_tree.kill_group(self._process.pid)
        while self._reap():
            orphans.kill_below(os.getpid())
            process_tree.pause_for_exits()

    def _reap(self) -> bool:
        """Reap every child that has ended; return whether any child is left."""
        while True:
            try:
                pid, wait_status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._process.pid:
                self._wait_status = wait_status
                self._process.returncode = os.waitstatus_to_exitcode(wait_status)  # tells Popen that it was reaped
            self._reaped_cpu_s += usage.ru_utime + usage.ru_stime
            self._peak_memory_bytes = max(self._peak_memory_bytes, usage.ru_maxrss * 1024)
