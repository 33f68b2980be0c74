"""The distance of a verdict from the cheapest conceivable run: the fork of a process that does nothing.

    python -m benchmarks.judge.floor [--rounds 20] [--json FILE]

Forks, waited for one after the other, of an empty C program, of a plain interpreter, and of interpreters with the judge's
preload sets (each child exits at once); then the start of `python` itself; then whole verdicts, HTTP included. All
take turns in one run; the figures are milliseconds of one core per item: for forks and starts the 10th percentile and the
median of their wall clock, for verdicts the wall clock of batches of 64 times the cores over the programs in them.
"""

import contextlib
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.client import BATCH_SIZE
from benchmarks.judge.servers import ROOT
from benchmarks.judge.speed import WORKLOADS, measure
from code_judge_server.preload_sets import preload_sets

_FORKS_PER_ROUND = 50
_STARTS_PER_ROUND = 3
_C_TIMER = r"""
#include <stdio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e3 + t.tv_nsec / 1e6; }
int main(void) {
    int count;
    while (scanf("%d", &count) == 1) {
        for (int i = 0; i < count; i++) {
            double start = now();
            pid_t pid = fork();
            if (pid == 0) _exit(0);
            waitpid(pid, 0, 0);
            printf("%f ", now() - start);
        }
        printf("\n");
        fflush(stdout);
    }
    return 0;
}
"""
_PYTHON_TIMER = """
import os, sys
from time import perf_counter
def time_forks(count):
    for _ in range(count):
        start = perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        yield (perf_counter() - start) * 1e3
for line in iter(sys.stdin.readline, ""):
    print(*time_forks(int(line)), flush=True)
"""
_START_TIMER = """
import os, sys
from time import perf_counter
def time_starts(count):
    for _ in range(count):
        start = perf_counter()
        os.waitpid(os.posix_spawn(sys.executable, [sys.executable, "-c", sys.argv[1]], os.environ), 0)
        yield (perf_counter() - start) * 1e3
for line in iter(sys.stdin.readline, ""):
    print(*time_starts(int(line)), flush=True)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A process that reads a number, does something that many times and prints the milliseconds of each."""

    name: str
    process: subprocess.Popen[str]
    per_round: int

    def run(self) -> list[float]:
        """Return the milliseconds of one round."""
        to, back = self.process.stdin, self.process.stdout
        assert to is not None
        assert back is not None
        to.write(f"{self.per_round}\n")
        to.flush()
        return [float(word) for word in back.readline().split()]


@contextlib.contextmanager
def timers() -> Iterator[list[Timer]]:
    """Start all timers, and stop them at the end; the C timer only if there is a compiler."""
    commands = {
        "fork of a plain Python": [sys.executable, "-I", "-S", "-c", _PYTHON_TIMER],
        **{f"fork of the preload set `{name}`": _preloaded(modules) for name, modules in preload_sets({}).items()},
        "start of python": [sys.executable, "-c", _START_TIMER, "pass"],
        "start of python, import sympy": [sys.executable, "-c", _START_TIMER, "import sympy"],
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="floor-")))
        if compiler := shutil.which("cc"):
            commands = {"fork of an empty process": [_compiled(compiler, folder)], **commands}
        started = []
        for name, command in commands.items():
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
            stack.callback(_stop, process)
            started.append(
                Timer(name=name, process=process, per_round=_FORKS_PER_ROUND if "fork" in name else _STARTS_PER_ROUND)
            )
        yield started


def _preloaded(modules: Sequence[str]) -> list[str]:
    load = f"from code_judge_server.jail.launch import preload\npreload.load({list(modules)!r})\n"
    return [sys.executable, "-c", load + _PYTHON_TIMER]


def _compiled(compiler: str, folder: Path) -> str:
    source, program = folder / "fork_timer.c", folder / "fork_timer"
    source.write_text(_C_TIMER)
    subprocess.run([compiler, "-O2", "-o", str(program), str(source)], check=True)
    return str(program)


def _stop(process: subprocess.Popen[str]) -> None:
    streams: tuple[IO[str] | None, ...] = (process.stdin, process.stdout)
    for stream in streams:
        if stream is not None:
            stream.close()
    process.wait()


async def measure_floor(rounds: int) -> list[report.Row]:
    """Run everything in turn, `rounds` times; return the table."""
    pieces: dict[str, list[float]] = {}
    with timers() as all_timers, servers.running("agentrl", servers.OURS) as server:
        for number in range(rounds + 1):
            row = {timer.name: timer.run() for timer in all_timers}
            for name, case in WORKLOADS.items():
                once = await measure(server, case, 2 * BATCH_SIZE, f"round-{number}")
                row[f"verdict: {name}"] = [1000 * report.num_cores() / once.programs_per_s]
            for name, values in row.items() if number else ():  # the first round warms up
                pieces.setdefault(name, []).extend(values)
    floor = _low(next(iter(pieces.values())))
    return [
        {
            "piece": name,
            "core ms, low": _low(values),
            "median": statistics.median(values),
            "times the first": _low(values) / floor,
        }
        for name, values in pieces.items()
    ]


def _low(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=10, method="inclusive")[0]


def main() -> None:
    """Parse the arguments, measure and report."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    report.print_machine()
    rows = uvloop.run(measure_floor(options.rounds))
    report.print_table("milliseconds of one core for one piece", rows)
    report.write_json(options.json, {"floor": rows})


if __name__ == "__main__":
    main()
