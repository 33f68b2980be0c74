"""Programs per second of our judge, compared with its peers, all started by this script and measured in turn.

    python -m benchmarks.judge.speed [--rounds 3] [--seconds 3] [--json FILE]

Peers: a judge that starts `python` for every program (`subprocess_judge.py`), the same in bubblewrap where `bwrap` is
installed, and our own server in tier D. All get the same batches of 64 from the same client over HTTP, two batches in
flight, every verdict checked; programs are a trivial one, one that imports sympy, and one that imports numpy and sympy.

Prints medians over the rounds: programs per second and core, how many times the peer's that is (by the clock, and by the CPU
time of one program, which other work on the machine disturbs less), and that CPU time, split into the server's process,
everything below it (slots and programs), and the client. `others` is the rest of the machine, in cores.

It ends with exit code 1 and the reason if, in tier A, our judge does less than 4 times (trivial) or 50 times (sympy) as many
programs per second, by the clock, as the one that starts `python` for each.
"""

import contextlib
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter

import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.accounting import CpuTime, cpu_time
from benchmarks.judge.client import BATCH_SIZE, Client, refuse_wrong
from benchmarks.judge.honest_programs import Case
from benchmarks.judge.programs import NUMPY_AND_SYMPY, SYMPY, TRIVIAL, repeated
from benchmarks.judge.servers import Server
from code_judge_server.schemas import IsolationTier

WORKLOADS = {"trivial": TRIVIAL, "import sympy": SYMPY, "numpy and sympy": NUMPY_AND_SYMPY}
OURS = "agentrl"
PYTHON_PER_PROGRAM = "python per program"
TIMES_AS_FAST = {"trivial": 4.0, "import sympy": 50.0}
"""Least speed-up of ours in tier A, by the clock, over a judge that starts `python` per program."""
IN_FLIGHT = 2
"""Batches in flight: while one is written and read, the slots work on the other."""
_OWN_PARTS = ("server_s", "below_s", "client_s")
_NUM_WARM_UP = 16
_MAX_BATCHES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One measurement of one judge."""

    num_programs: int
    wall_s: float
    cpu: CpuTime

    @property
    def programs_per_s(self) -> float:
        """Verdicts per second."""
        return self.num_programs / self.wall_s


async def measure(server: Server, case: Case, num_programs: int, prefix: str) -> Round:
    """Let a judge run one program `num_programs` times; raise if a verdict is wrong."""
    calls = repeated(case, num_programs, prefix=prefix)
    async with Client(server.url) as client:
        cpu_before, started_at = cpu_time(server.process), perf_counter()
        answers = await client.judge_all(calls, in_flight=IN_FLIGHT)
        wall_s, cpu = perf_counter() - started_at, cpu_time(server.process) - cpu_before
    refuse_wrong(answers)
    return Round(num_programs=num_programs, wall_s=wall_s, cpu=cpu)


async def measure_all(judges: Sequence[Server], case: Case, *, rounds: int, seconds: float) -> dict[str, list[Round]]:
    """Measure all judges in turn, in `rounds` rounds of about `seconds` each (slow judges: one batch)."""
    results: dict[str, list[Round]] = {judge.name: [] for judge in judges}
    sizes = {}
    for judge in judges:
        warm_up = await measure(judge, case, _NUM_WARM_UP, "warm-up")
        warm_up = await measure(judge, case, _NUM_WARM_UP, "warm-again")
        num_batches = round(warm_up.programs_per_s * seconds / BATCH_SIZE)
        sizes[judge.name] = BATCH_SIZE * min(max(num_batches, 1), _MAX_BATCHES)
    for number in range(rounds):
        for judge in [*judges[number % len(judges) :], *judges[: number % len(judges)]]:
            results[judge.name].append(await measure(judge, case, sizes[judge.name], f"round-{number}"))
    return results


def milliseconds(rounds: Sequence[Round], part: str) -> float:
    """Return the CPU time of one program in a part of the machine, the median of the rounds."""
    return statistics.median(1000 * getattr(r.cpu, part) / r.num_programs for r in rounds)


def rows_of(results: dict[str, list[Round]]) -> list[report.Row]:
    """Return the table of one workload: medians over the rounds."""
    cores = report.num_cores()
    speeds = {name: statistics.median(r.programs_per_s for r in rounds) for name, rounds in results.items()}

    cpu_ms = {name: sum(milliseconds(rounds, part) for part in _OWN_PARTS) for name, rounds in results.items()}

    return [
        {
            "judge": name,
            "programs/s": speeds[name],
            "per core": speeds[name] / cores,
            "ours is times": speeds[OURS] / speeds[name],
            "by CPU": cpu_ms[name] / cpu_ms[OURS],
            "CPU ms: server": milliseconds(rounds, "server_s"),
            "programs": milliseconds(rounds, "below_s"),
            "client": milliseconds(rounds, "client_s"),
            "others, cores": statistics.median(r.cpu.others_s / r.wall_s for r in rounds),
            "rounds": " ".join(f"{r.programs_per_s:.3g}" for r in rounds),
        }
        for name, rounds in results.items()
    ]


def too_slow(figures: report.Row) -> list[str]:
    """Return a fault for each workload in which ours, in tier A, is not as fast as required."""
    if figures["isolation"] != IsolationTier.A:
        return []
    times = {
        name: next(row["ours is times"] for row in figures[name] if row["judge"] == PYTHON_PER_PROGRAM)
        for name in TIMES_AS_FAST
    }
    return [
        f"{name}: {times[name]:.3g} times as fast as `{PYTHON_PER_PROGRAM}`: less than {least:g} times"
        for name, least in TIMES_AS_FAST.items()
        if times[name] < least
    ]


async def compare(rounds: int, seconds: float) -> report.Row:
    """Start all judges, measure every workload and print its table; return all figures."""
    commands = {
        OURS: servers.OURS,
        "agentrl, tier D": servers.TIER_D,
        PYTHON_PER_PROGRAM: servers.PYTHON_PER_PROGRAM,
    }
    if shutil.which("bwrap"):
        commands["bubblewrap + python"] = servers.BUBBLEWRAP
    figures: report.Row = {}
    with contextlib.ExitStack() as stack:
        judges = [stack.enter_context(servers.running(name, command)) for name, command in commands.items()]
        async with Client(judges[0].url) as client:
            health = await client.get("/v1/health")
        figures["isolation"] = health["isolation"]
        print(f"{OURS}: isolation tier {health['isolation']}, {health['num_slots']} slots")
        for name, case in WORKLOADS.items():
            figures[name] = rows_of(await measure_all(judges, case, rounds=rounds, seconds=seconds))
            report.print_table(name, figures[name])
    return figures


def main() -> int:
    """Parse the arguments, measure and report; return the exit code, 1 if something is beyond its bound."""
    parser = report.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="about how long a round of one judge takes")
    options = parser.parse_args()
    report.print_machine()
    figures = uvloop.run(compare(options.rounds, options.seconds))
    faults = too_slow(figures)
    report.write_json(options.json, {**figures, "faults": faults})
    verdict = "as fast as it must be" if figures["isolation"] == IsolationTier.A else "not in tier A: no bounds"
    print("\n" + ("\n".join(faults) or verdict))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
