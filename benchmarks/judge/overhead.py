"""The time that the judge adds to a program's own, with single calls that arrive at random and keep it busy.

    python -m benchmarks.judge.overhead [--load 0.8] [--seconds 8] [--rounds 5] [--json FILE]

In each round, first the throughput of trivial programs is measured, each in a request of its own, as many in flight as keep the
judge busy. Then, at once, because the speed of a virtual machine changes from minute to minute, calls of the same program
arrive as a Poisson process of `--load` times that rate, each in a request of its own whether or not earlier ones are answered.
Then the throughput is measured again. If it has changed by more than a tenth, the load was not the requested one; if the host
of a virtual machine gave more than a hundredth of the used CPU time to others, calls waited for that. Such a round is shown
with a `-` after its number, and does not count; other rounds replace it, up to three times `--rounds` in all.

Overhead of a call = the time from the moment it was due (not sent: a late generator hides nothing) to the moment its verdict
was read, less the verdict's `wall_time_s`, which runs from the start of the program to its end. So it holds HTTP, the queue,
setting up and cleaning up the jail, and the client. The same generator at the same rate against `GET /v1/ready`, which does
nothing, shows the share of HTTP and the client; `late` is the delay of a request's start after its due time.

It ends with exit code 1 and the reason if, in the median of the rounds that count (of all rounds, where less than half of
`--rounds` do), the median of the overhead is above 6 ms or its 99th percentile above 30 ms.
"""

import asyncio
import random
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, fields
from time import perf_counter

import orjson
import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.accounting import CpuTime, cpu_time
from benchmarks.judge.client import Answer, Client, refuse_wrong
from benchmarks.judge.lean_client import LeanClient
from benchmarks.judge.programs import TRIVIAL, repeated
from benchmarks.judge.servers import Server
from benchmarks.judge.speed import measure

_NUM_WARM_UP = 1000
_SINGLES_IN_FLIGHT = 32
_THROUGHPUT_S = 3.0
_STEADY = 0.1
"""Share by which the throughput may change in a round that counts."""
_MOST_STOLEN = 0.01
"""Share of the CPU time that the machine's host may take in a round that counts."""
_MOST_TRIES = 3
"""Most rounds tried for each round that counts."""
_PATH = "/v1/submissions"
_MOST_OVERHEAD_MS = {"p50": 6.0, "p99": 30.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Results of one Poisson process; times in seconds."""

    latencies_s: list[float]
    """Times from the due moment of a call to its answer."""
    lateness_s: list[float]
    """Times from the due moment of a call to its start."""


async def arrive(num_calls: int, rate: float, send: Callable[[int], Awaitable[None]], *, seed: int) -> Arrivals:
    """Call `send(number)` at the moments of a Poisson process with `rate` calls per second."""
    rng = random.Random(seed)
    latencies_s, lateness_s = [0.0] * num_calls, [0.0] * num_calls

    async def send_when_due(number: int, due: float) -> None:
        lateness_s[number] = perf_counter() - due
        await send(number)
        latencies_s[number] = perf_counter() - due

    due = perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(num_calls):
            due += rng.expovariate(rate)
            if (wait_s := due - perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            group.create_task(send_when_due(number, due))
    return Arrivals(latencies_s=latencies_s, lateness_s=lateness_s)


@dataclass(slots=True)
class Samples:
    """Measurements of a round; times in seconds."""

    overhead_s: list[float] = field(default_factory=list)
    queue_s: list[float] = field(default_factory=list)
    program_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    ready_s: list[float] = field(default_factory=list)
    cpu: list[CpuTime] = field(default_factory=list)

    @property
    def judge_cpu_s(self) -> float:
        """CPU time of the server and of everything below it."""
        return sum(used.server_s + used.below_s for used in self.cpu)

    @property
    def stolen_share(self) -> float:
        """Share of the machine's CPU time that its host took."""
        used_s = sum(used.server_s + used.below_s + used.client_s + used.others_s for used in self.cpu)
        return sum(used.stolen_s for used in self.cpu) / used_s

    def add(self, other: "Samples") -> None:
        """Add the measurements of another round."""
        for part in fields(self):
            getattr(self, part.name).extend(getattr(other, part.name))


async def run_round(server: Server, num_calls: int, rate: float, *, seed: int) -> Samples:
    """Measure the judge, then the no-op endpoint with the same arrivals."""
    samples = Samples()
    calls = repeated(TRIVIAL, num_calls, prefix=f"single-{seed}")
    bodies = [orjson.dumps(call.submission) for call in calls]
    answers = [b""] * num_calls
    client = LeanClient(server.url)

    async def ask_ready(_: int) -> None:
        await client.get("/v1/ready")

    async def judge(number: int) -> None:
        answers[number] = await client.post(_PATH, bodies[number])

    before = cpu_time(server.process)
    arrivals = await arrive(num_calls, rate, judge, seed=seed)
    samples.cpu.append(cpu_time(server.process) - before)
    samples.ready_s += (await arrive(num_calls, rate, ask_ready, seed=seed)).latencies_s
    client.close()
    for call, answer, latency_s in zip(calls, answers, arrivals.latencies_s, strict=True):
        verdict = orjson.loads(answer)
        refuse_wrong([Answer(call=call, verdict=verdict, latency_s=latency_s)])
        samples.overhead_s.append(latency_s - verdict["wall_time_s"])
        samples.program_s.append(verdict["wall_time_s"])
        samples.queue_s.append(verdict["queue_time_s"])
    samples.late_s += arrivals.lateness_s
    return samples


async def singles_per_s(server: Server, num_calls: int, prefix: str) -> float:
    """Return the throughput of single calls, with enough in flight that the judge is never idle."""
    calls = repeated(TRIVIAL, num_calls, prefix=prefix)
    bodies = [orjson.dumps(call.submission) for call in calls]
    room = asyncio.Semaphore(_SINGLES_IN_FLIGHT)
    client = LeanClient(server.url)

    async def judge(body: bytes) -> bytes:
        async with room:
            return await client.post(_PATH, body)

    started_at = perf_counter()
    answers = await asyncio.gather(*map(judge, bodies))
    wall_s = perf_counter() - started_at
    client.close()
    verdicts = map(orjson.loads, answers)
    refuse_wrong(
        [Answer(call=call, verdict=verdict, latency_s=wall_s) for call, verdict in zip(calls, verdicts, strict=True)]
    )
    return num_calls / wall_s


async def measure_overhead(*, load: float, seconds: float, rounds: int) -> report.Row:
    """Start our judge, measure, print the tables; return all figures."""
    together = Samples()
    rows: list[report.Row] = []
    with servers.running("agentrl", servers.OURS) as server:
        async with Client(server.url) as client:
            isolation = (await client.get("/v1/health"))["isolation"]
        print(f"isolation tier {isolation}")
        await measure(server, TRIVIAL, _NUM_WARM_UP, "warm-up")
        per_s = (await measure(server, TRIVIAL, _NUM_WARM_UP, "warm-again")).programs_per_s
        num_closed = round(per_s * _THROUGHPUT_S)
        num_steady = 0
        for number in range(_MOST_TRIES * rounds):
            before = await singles_per_s(server, num_closed, f"before-{number}")
            samples = await run_round(server, round(load * before * seconds), load * before, seed=number)
            after = await singles_per_s(server, num_closed, f"after-{number}")
            is_steady = abs(after / before - 1) <= _STEADY and samples.stolen_share <= _MOST_STOLEN
            num_steady += is_steady
            rows.append(
                {
                    "round": f"{number + 1}{'' if is_steady else '-'}",
                    "programs/s": before,
                    "after": after,
                    "arrivals/s": load * before,
                    "CPU ms": 1000 * samples.judge_cpu_s / len(samples.overhead_s),
                    "stolen %": 100 * samples.stolen_share,
                    **report.percentiles(samples.overhead_s, scale=1000),
                }
            )
            together.add(samples)
            if num_steady == rounds:
                break
    report.print_table("milliseconds of overhead", rows)
    medians = medians_of(rows, at_least=rounds / 2)
    report.print_table(f"medians of the {num_steady} rounds that count, of {len(rows)}", [medians])
    return {"isolation": isolation, "rounds": rows, "medians": medians, **_report(together)}


def medians_of(rows: Sequence[report.Row], *, at_least: float) -> report.Row:
    """Return the medians of the rounds with steady throughput, or of all rounds if too few were steady."""
    steady = [row for row in rows if not str(row["round"]).endswith("-")]
    counted = steady if len(steady) >= at_least else rows
    return {name: statistics.median(row[name] for row in counted) for name in rows[0] if name != "round"}


def _report(samples: Samples) -> report.Row:
    num_calls = len(samples.overhead_s)
    parts: Sequence[tuple[str, list[float]]] = (
        ("overhead: due -> verdict, less the program", samples.overhead_s),
        ("  of which in the queue", samples.queue_s),
        ("the program's own wall clock", samples.program_s),
        ("GET /v1/ready: due -> answer", samples.ready_s),
        ("  of which the generator was late", samples.late_s),
    )
    rows = [{"milliseconds": name, **report.percentiles(values, scale=1000)} for name, values in parts]
    report.print_table(f"all {num_calls} calls together", rows)
    cpu = {
        "CPU ms of a call: server": 1000 * sum(c.server_s for c in samples.cpu) / num_calls,
        "programs": 1000 * sum(c.below_s for c in samples.cpu) / num_calls,
        "client": 1000 * sum(c.client_s for c in samples.cpu) / num_calls,
        "others": 1000 * sum(c.others_s for c in samples.cpu) / num_calls,
    }
    report.print_table("", [cpu])
    return {"times": rows, "cpu": cpu}


def too_long(overhead_ms: report.Row) -> list[str]:
    """Return a fault for each percentile of the overhead that is above its bound."""
    return [
        f"overhead: {name} is {overhead_ms[name]:.3g} ms: more than {most:g} ms"
        for name, most in _MOST_OVERHEAD_MS.items()
        if overhead_ms[name] > most
    ]


def main() -> int:
    """Parse the arguments, measure and report; return the exit code, 1 if something is beyond its bound."""
    parser = report.arguments(__doc__)
    parser.add_argument("--load", type=float, default=0.8, help="arrivals as a share of the throughput just measured")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a round's arrivals")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report.print_machine()
    figures = uvloop.run(measure_overhead(load=options.load, seconds=options.seconds, rounds=options.rounds))
    faults = too_long(figures["medians"])
    report.write_json(options.json, {**figures, "faults": faults})
    print("\n" + ("\n".join(faults) or "overhead within its bounds"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
