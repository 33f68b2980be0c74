"""The interface between the judge and whatever runs a program, so that the latter can be replaced.

An executor knows nothing of verdicts, tests or languages: it takes a `Job` and returns an `Outcome`: how the job ended, its
output and its use of resources. `jail_executor` serves tiers A to C, `process_executor` tier D.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from code_judge_server.sandbox.outcome import JobLimits, Outcome
from code_judge_server.schemas import Canary, IsolationTier


class ExecutorError(Exception):
    """The executor failed, not the job; the outcome of the job is unknown."""


OutputName = Literal["stdout", "stderr"]


@dataclass(slots=True)
class Spent:
    """CPU time of one submission so far, also when it is cancelled half-way."""

    by_ended_s: float = 0.0
    """CPU time of its jobs that have ended."""
    read_running_s: Callable[[], float] | None = None
    """Reads the CPU time of the running job, where the executor can; set while a job runs."""

    @property
    def cpu_time_s(self) -> float:
        """Return the CPU time of all its jobs."""
        return self.by_ended_s + (0.0 if self.read_running_s is None else self.read_running_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One command to run in a fresh work folder.

    Example: `Job(argv=("/usr/bin/python3", "main.py"), files={"main.py": b"print(1)"}, preload="bare", limits=limits)`.
    """

    argv: tuple[str, ...]
    limits: JobLimits
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Content by relative path (parents are created); all files are executable."""
    stdin: bytes = b""
    preload: str | None = None
    """Warm interpreter that may replace `argv[0]`, where the executor has one; `argv[1]` is then the script."""
    collect: tuple[str, ...] = ()
    """Relative paths of regular files to bring back after the job; links are not followed."""
    collect_bytes: int = 0
    """Total size of the collected files; files beyond it are left out."""
    on_output: Callable[[OutputName, bytes], None] | None = None
    """Called with the job's output while it runs, up to its output limit in all."""
    spent: Spent | None = None
    """Receives the CPU time of the job while it runs, where the executor can read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorLoad:
    """Current load of an executor."""

    num_asleep: int = 0
    """Jobs that have used hardly any CPU for a while and do not wait for any: their cores are free for others."""
    num_rebuilt_slots: int = 0
    """Slots that died and were replaced since `start`."""


class Executor(Protocol):
    """Runs jobs, a fixed number at a time."""

    @property
    def tier(self) -> IsolationTier:
        """Isolation of a job from the machine; known after `start`."""
        ...

    @property
    def memory_enforcement(self) -> Literal["cgroup", "sampled"]:
        """Enforcement of the memory limit; known after `start`."""
        ...

    @property
    def canaries(self) -> Sequence[Canary]:
        """Checks made at start to find the tier, and their results."""
        ...

    @property
    def preloads(self) -> Mapping[str, Sequence[str]]:
        """Warm interpreters by name, with the modules of each; empty where every job starts its own."""
        ...

    def load(self) -> ExecutorLoad:
        """Return the current load; must be cheap, as it is called about twenty times a second."""
        ...

    async def start(self) -> None:
        """Prepare to run jobs.

        Raises:
            ExecutorError: the executor cannot work on this machine.
        """
        ...

    async def execute(self, job: Job) -> Outcome:
        """Run one job as soon as a slot is free; cancelling the call kills it.

        Raises:
            ExecutorError: the executor failed, twice.
        """
        ...

    async def execute_pair(self, jobs: tuple[Job, Job]) -> tuple[Outcome, Outcome]:
        """Run two jobs at once, each reading the output of the other, as soon as two slots are free.

        Neither has its own stdin, nor stdout in its outcome. Cancelling the call kills both.

        Raises:
            ExecutorError: the executor failed, or has only one slot.
        """
        ...

    async def aclose(self) -> None:
        """Kill all jobs, and leave no process, mount, cgroup or file behind."""
        ...
