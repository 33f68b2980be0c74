"""45,000 calls of a realistic mix, all submitted at once: is every one answered once and rightly, how fast, in how much memory?

    python -m benchmarks.judge.mix [--calls 45000] [--seed 0] [--json FILE]

A third of the programs import numpy or sympy; 2 % crash, 1 % flood their output, 0.3 % loop and 0.3 % sleep past a limit of
one second; the rest are small honest programs of a dozen kinds. What each must print is computed by the generator, so "the
same verdict as when run alone" is checked for every single one. All batches of 64 are sent at once.

Then a tenth of the calls is judged four times in turn, as it is and with its sleepers replaced by honest programs: sleepers
must not hold up the programs that compute.
"""

import asyncio
import collections
import statistics
from collections.abc import Sequence
from time import perf_counter

import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.accounting import Memory, cpu_time, memory
from benchmarks.judge.client import BATCH_SIZE, Answer, Client
from benchmarks.judge.programs import Call, Kind, mix
from benchmarks.judge.servers import Server

_NUM_WARM_UP = 128
_SAMPLE_PAUSE_S = 1.0
_MIB = 1024 * 1024
_NUM_COMPARISONS = 2
_NUM_WRONG_SHOWN = 5


class MixError(Exception):
    """A call got a wrong verdict."""


async def sample_memory(server: Server, samples: list[Memory]) -> None:
    """Add to `samples` every second until cancelled."""
    while True:
        samples.append(await asyncio.to_thread(memory, server.process))
        await asyncio.sleep(_SAMPLE_PAUSE_S)


def kind_rows(answers: Sequence[Answer]) -> list[report.Row]:
    """Return a row per kind of program: how many, how many wrong, and what they took."""
    rows = []
    for kind in Kind:
        of_kind = [answer for answer in answers if answer.call.kind is kind]
        if of_kind:
            verdicts = [answer.verdict for answer in of_kind]
            rows.append(
                {
                    "kind": str(kind),
                    "calls": len(of_kind),
                    "wrong": sum(not answer.call.is_right(answer.verdict) for answer in of_kind),
                    "CPU ms": 1000 * statistics.fmean(verdict["cpu_time_s"] for verdict in verdicts),
                    **{
                        f"wall ms {name}": value
                        for name, value in report.percentiles(
                            [verdict["wall_time_s"] for verdict in verdicts], scale=1000
                        ).items()
                    },
                }
            )
    return rows


async def run_mix(server: Server, calls: Sequence[Call]) -> tuple[report.Row, list[Answer]]:
    """Judge all calls at once; print and return what it took."""
    samples: list[Memory] = []
    async with Client(server.url) as client:
        sampler = asyncio.create_task(sample_memory(server, samples))
        before, started_at = cpu_time(server.process), perf_counter()
        answers = await client.judge_all(calls)
        total_s, cpu = perf_counter() - started_at, cpu_time(server.process) - before
        sampler.cancel()
        num_refused = client.num_refused
    rows = kind_rows(answers)
    report.print_table(f"{len(answers)} calls, each answered exactly once", rows)
    programs_s = sum(answer.verdict["cpu_time_s"] for answer in answers)
    totals: report.Row = {
        "total s": total_s,
        "calls/s": len(answers) / total_s,
        "programs' CPU s": programs_s,
        "total / programs' CPU": total_s / programs_s,
        "core s / programs' CPU": total_s * report.num_cores() / programs_s,
        "server CPU s": cpu.server_s,
        "client CPU s": cpu.client_s,
        "others, cores": cpu.others_s / total_s,
        "requests refused": num_refused,
    }
    report.print_table("in all", [totals])
    latencies = report.percentiles([answer.latency_s for answer in answers])
    report.print_table("seconds from the submission of all to the answer of one", [latencies])
    used: report.Row = {
        "server MiB: at first": samples[0].server_bytes / _MIB,
        "most": max(sample.server_bytes for sample in samples) / _MIB,
        "all below it, MiB: at first": samples[0].below_bytes / _MIB,
        "most ": max(sample.below_bytes for sample in samples) / _MIB,
    }
    report.print_table(f"memory, {len(samples)} samples", [used])
    return {"kinds": rows, "totals": totals, "latency_s": latencies, "memory_mib": used}, answers


async def compare_sleepers(server: Server, num_calls: int, *, seed: int) -> list[report.Row]:
    """Judge the same calls with and without sleepers, in turn; print and return a row per run."""
    rows = []
    for number in range(_NUM_COMPARISONS):
        for name, without in (("with", frozenset[Kind]()), ("without", frozenset({Kind.SLEEP}))):
            calls = mix(num_calls, seed=seed, prefix=f"{name}-{number}", without=without)
            async with Client(server.url) as client:
                started_at = perf_counter()
                answers = await client.judge_all(calls)
                total_s = perf_counter() - started_at
            refuse_wrong(answers)
            waits = [answer.verdict["queue_time_s"] for answer in answers if answer.call.is_honest]
            rows.append(
                {
                    "sleepers": name,
                    "number": sum(call.kind is Kind.SLEEP for call in calls),
                    "total s": total_s,
                    **{f"queue s {at}": value for at, value in report.percentiles(waits).items()},
                }
            )
    report.print_table("how long honest programs wait", rows)
    return rows


def refuse_wrong(answers: Sequence[Answer]) -> None:
    """Raise a `MixError` that counts the wrong verdicts and shows the first ones."""
    wrong = [answer for answer in answers if not answer.call.is_right(answer.verdict)]
    if not wrong:
        return
    counts = collections.Counter((str(answer.call.kind), answer.verdict["status"]) for answer in wrong)
    shown = "\n\n".join(
        f"{answer.call.submission}\nexpected {answer.call.expected}\ngot {answer.verdict}"
        for answer in wrong[:_NUM_WRONG_SHOWN]
    )
    raise MixError(f"{len(wrong)} wrong verdicts: {dict(counts)}\n{shown}")


async def measure(num_calls: int, *, seed: int) -> report.Row:
    """Start our judge and run all parts."""
    with servers.running("agentrl", servers.OURS) as server:
        async with Client(server.url) as client:
            health = await client.get("/v1/health")
            await client.judge_all(mix(_NUM_WARM_UP, seed=seed + 1, prefix="warm-up"))
        print(f"isolation tier {health['isolation']}, {health['num_slots']} slots")
        figures, answers = await run_mix(server, mix(num_calls, seed=seed))
        sleepers = await compare_sleepers(server, max(num_calls // 10, BATCH_SIZE), seed=seed)
    refuse_wrong(answers)
    return {"isolation": health["isolation"], **figures, "sleepers": sleepers}


def main() -> None:
    """Parse the arguments, measure and report."""
    parser = report.arguments(__doc__)
    parser.add_argument("--calls", type=int, default=45_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report.print_machine()
    report.write_json(options.json, uvloop.run(measure(options.calls, seed=options.seed)))


if __name__ == "__main__":
    main()
