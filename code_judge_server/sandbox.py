"""The one door between the judge and whatever runs a program, so that the latter can be replaced whole.

An executor knows nothing of verdicts: it takes a `Program`, standard input and `ProgramLimits`, and says in an `Outcome` how
the program ended, what it printed and what it used. `process_executor` is the only one so far (tier D).
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from code_judge_server.ending import Ending
from code_judge_server.schemas import IsolationTier


class ExecutorError(Exception):
    """The executor failed, not the program: nothing is known about the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to run, in a fresh folder.

    Example: `Program(files={"main.py": b"print(1)"}, compile_argv=None, run_argv=("/usr/bin/python3", "main.py"))`.
    """

    files: dict[str, bytes]
    compile_argv: tuple[str, ...] | None
    """Runs first, in the same folder; any other end than exit code 0 is the outcome."""
    run_argv: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramLimits:
    """What a program and everything it starts may use together."""

    cpu_time_s: float
    wall_time_s: float
    memory_bytes: int
    output_bytes: int
    """Of stdout, and as many of stderr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended, as its parent saw it."""

    ending: Ending
    compiling: bool
    """It was the compiler that ended so; the program never ran."""
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


class Executor(Protocol):
    """Runs programs, a fixed number at once."""

    @property
    def tier(self) -> IsolationTier:
        """How far a program is kept from the machine."""
        ...

    @property
    def memory_enforcement(self) -> Literal["cgroup", "sampled"]:
        """How the memory limit is held."""
        ...

    async def start(self) -> None:
        """Make ready to run programs.

        Raises:
            ExecutorError: it cannot work on this machine.
        """
        ...

    async def execute(self, program: Program, *, stdin: bytes, limits: ProgramLimits) -> Outcome:
        """Run one program as soon as a slot is free; cancelling the call kills it.

        Raises:
            ExecutorError: the executor failed, twice.
        """
        ...

    async def aclose(self) -> None:
        """Kill what runs, and leave no process and no file behind."""
        ...
