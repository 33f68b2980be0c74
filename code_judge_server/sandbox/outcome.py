"""The limits and the end of a program, as its parent sees them (standard library only: the slots of tier D use them too)."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Ending(StrEnum):
    """The cause of a program's end."""

    EXITED = "exited"
    """The program ended itself: see its exit code or signal."""
    CPU_TIME = "cpu_time"
    WALL_TIME = "wall_time"
    MEMORY = "memory"
    OUTPUT = "output"
    TASKS = "tasks"
    """Too many processes and threads."""
    CANCELLED = "cancelled"
    """Nobody waits for the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Resources that a job and everything it starts may use together."""

    cpu_time_s: float
    wall_time_s: float
    memory_bytes: int
    output_bytes: int
    """Limit for stdout, and the same for stderr."""
    max_tasks: int
    """Processes and threads."""
    disk_bytes: int
    """Limit for files in the work folder, `/tmp` and `/dev/shm` together (tier D: for each file)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """End of a job, as its parent saw it."""

    ending: Ending
    exit_code: int | None = None
    """None if a signal ended the job."""
    signal: int | None = None
    stdout: bytes = b""
    """Output, at most `output_bytes`."""
    stderr: bytes = b""
    stdout_cut: bool = False
    """The job printed more than `output_bytes`."""
    stderr_cut: bool = False
    cpu_time_s: float = 0.0
    wall_time_s: float = 0.0
    peak_memory_bytes: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The files of `collect` that exist."""
    files_cut: bool = False
    """Files were left out because of `collect_bytes`."""
    stdin_left_bytes: int = 0
    """Bytes sent by the partner in a pair of jobs that this job had not read at its end."""
    ended_at: float = field(default_factory=time.monotonic)
    """Time at which the end of the job was known, by `time.monotonic`."""
