"""The one door between the judge and whatever runs a program, so that the latter can be replaced whole.

An executor knows nothing of verdicts, tests or languages: it takes a `Job` and says in an `Outcome` how the job ended, what it
printed and what it used. `jail_executor` is the one of tiers A to C, `process_executor` that of tier D.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from code_judge_server.ending import Ending
from code_judge_server.schemas import Canary, IsolationTier


class ExecutorError(Exception):
    """The executor failed, not the job: nothing is known about the job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """What a job and everything it starts may use together."""

    cpu_time_s: float
    wall_time_s: float
    memory_bytes: int
    output_bytes: int
    """Of stdout, and as many of stderr."""
    max_tasks: int
    """Processes and threads."""
    disk_bytes: int
    """Files in the work folder, `/tmp` and `/dev/shm` together (tier D: size of any one file)."""


OutputName = Literal["stdout", "stderr"]


@dataclass(slots=True)
class Spent:
    """CPU time of one submission so far, for whoever gives it up in the middle."""

    by_ended_s: float = 0.0
    """Of its jobs that have ended."""
    read_running_s: Callable[[], float] | None = None
    """Set by whatever runs a job, as long as that runs, where it can tell."""

    @property
    def cpu_time_s(self) -> float:
        """Return what all of its jobs have used."""
        return self.by_ended_s + (0.0 if self.read_running_s is None else self.read_running_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command to run in a fresh work folder.

    Example: `Job(argv=("/usr/bin/python3", "main.py"), files={"main.py": b"print(1)"}, preload="bare", limits=limits)`.
    """

    argv: tuple[str, ...]
    limits: JobLimits
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Relative path (parents are made) to content; all are written executable."""
    stdin: bytes = b""
    preload: str | None = None
    """Warm interpreter that may stand in for `argv[0]`, where the executor has one; `argv[1]` is then the script."""
    collect: tuple[str, ...] = ()
    """Relative paths to bring back, where they are regular files after the job; no link is followed."""
    collect_bytes: int = 0
    """Size of all collected files together; what does not fit is left out."""
    on_output: Callable[[OutputName, bytes], None] | None = None
    """Called with what the job prints while it runs, no more than its limit of output in all."""
    spent: Spent | None = None
    """Where the executor, if it can, says how much CPU time the job has used while it runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a job ended, as its parent saw it."""

    ending: Ending
    exit_code: int | None
    """Absent if a signal ended it."""
    signal: int | None
    stdout: bytes
    """At most `output_bytes`."""
    stderr: bytes
    stdout_cut: bool
    """There was more than `output_bytes`."""
    stderr_cut: bool
    cpu_time_s: float
    wall_time_s: float
    peak_memory_bytes: int
    files: Mapping[str, bytes] = field(default_factory=dict)
    """What `collect` asked for and was there."""
    files_cut: bool = False
    """There was more of it than `collect_bytes`."""
    stdin_left_bytes: int = 0
    """Of a job in a pair: what its partner had sent by its end and it had not read."""
    ended_at: float = field(default_factory=time.monotonic)
    """Time at which the end of the job was known, on the clock of `time.monotonic`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLoad:
    """What an executor is busy with at this moment."""

    num_asleep: int = 0
    """Jobs that run, but have used hardly any CPU for a while and wait for none: their cores are free for others."""
    num_rebuilt_slots: int = 0
    """Slots that died and were replaced, since `start`."""


class Executor(Protocol):
    """Runs jobs, a fixed number at once."""

    @property
    def tier(self) -> IsolationTier:
        """How far a job is kept from the machine; known after `start`."""
        ...

    @property
    def memory_enforcement(self) -> Literal["cgroup", "sampled"]:
        """How the memory limit is held; known after `start`."""
        ...

    @property
    def canaries(self) -> Sequence[Canary]:
        """What was tried at start to find the tier, and what came of it."""
        ...

    @property
    def preloads(self) -> Mapping[str, Sequence[str]]:
        """Names of the warm interpreters and the modules that each holds; none where every job starts its own."""
        ...

    def load(self) -> ExecutorLoad:
        """Say how busy it is; cheap, for it is asked some twenty times a second."""
        ...

    async def start(self) -> None:
        """Make ready to run jobs.

        Raises:
            ExecutorError: it cannot work on this machine.
        """
        ...

    async def execute(self, job: Job) -> Outcome:
        """Run one job as soon as a slot is free; cancelling the call kills it.

        Raises:
            ExecutorError: the executor failed, twice.
        """
        ...

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """Run two jobs at once, each reading what the other prints, as soon as two slots are free.

        Neither has a stdin of its own or a stdout in its outcome. Cancelling the call kills both.

        Raises:
            ExecutorError: the executor failed, or has one slot only.
        """
        ...

    async def aclose(self) -> None:
        """Kill what runs, and leave no process, mount, cgroup or file behind."""
        ...
