"""45,000 calls of a realistic mix, all submitted at once: is every one answered once and rightly, how fast, in how much memory?

    python -m benchmarks.judge.mix [--calls 45000] [--seed 0] [--json FILE]

A third of the programs import numpy or sympy; 2 % crash, 1 % flood their output, 0.3 % loop and 0.3 % sleep past a limit of
one second; the rest are small honest programs of a dozen kinds. What each must print is computed by the generator, so "the
same verdict as when run alone" is checked for every single one. All batches of 64 are sent at once.

Then a thirtieth of the calls is judged six times in turn, behind two sleepers per slot and without any: sleepers must
not hold up the programs that compute (except in tier D, where sleepers are not known).

It ends with exit code 1 and the reason if the server takes more memory than allowed for these calls, or if honest
programs wait noticeably longer with sleepers than without; a wrong verdict ends it by its exception.
"""

import asyncio
import math
import statistics
import sys
from collections.abc import Sequence
from time import perf_counter

import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.accounting import Memory, cpu_time, memory
from benchmarks.judge.client import BATCH_SIZE, Answer, Client, refuse_wrong
from benchmarks.judge.programs import SHARES, Call, Kind, mix
from benchmarks.judge.servers import Server
from code_judge_server.schemas import IsolationTier

_NUM_WARM_UP = 128
_SAMPLE_PAUSE_S = 1.0
_MIB = 1024 * 1024
_NUM_COMPARISONS = 3
_COMPARED_SHARE = 30
"""Few enough calls that the machine is about equally fast from one run to the next."""
_SLEEPERS_PER_SLOT = 2
"""Calls per spare slot: more may delay others."""
_ALLOWED_SERVER_BYTES = 32 * _MIB
_ALLOWED_SERVER_BYTES_PER_CALL = 8192
"""Most growth of the server's own process. A call took 5 kB when this was written: submission, request, verdict, and the
results kept of it."""
_ALLOWED_HOLD_UP = 0.5
"""Share of the time for which the sleepers would fill all slots if each kept its own. The aim is zero, but a shared machine
varies in speed."""


async def sample_memory(server: Server, samples: list[Memory]) -> None:
    """Add to `samples` every second until cancelled."""
    while True:
        samples.append(await asyncio.to_thread(memory, server.process))
        await asyncio.sleep(_SAMPLE_PAUSE_S)


def kind_rows(answers: Sequence[Answer]) -> list[report.Row]:
    """Return a row per kind of program: calls, wrong verdicts, and times."""
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
    """Judge all calls at once; print and return the figures."""
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


def too_much_memory(used: report.Row, *, num_calls: int) -> list[str]:
    """Return a fault if the server's own process grew by more than allowed for these calls."""
    grew_mib = used["most"] - used["server MiB: at first"]
    allowed_mib = (_ALLOWED_SERVER_BYTES + num_calls * _ALLOWED_SERVER_BYTES_PER_CALL) / _MIB
    if grew_mib <= allowed_mib:
        return []
    return [f"memory: the server grew by {grew_mib:.0f} MiB for {num_calls} calls: more than {allowed_mib:.0f} MiB"]


def delay_faults(rows: Sequence[report.Row], *, num_slots: int) -> list[str]:
    """Return a fault if honest programs waited noticeably longer with sleepers, in the best runs of each kind."""
    waited_s = {
        name: min(row["queue s p99"] for row in rows if row["sleepers"] == name) for name in ("with", "without")
    }
    longer_s = waited_s["with"] - waited_s["without"]
    allowed_s = _ALLOWED_HOLD_UP * max(row["slept s"] for row in rows) / num_slots
    if longer_s <= allowed_s:
        return []
    return [
        f"sleepers: honest programs waited {waited_s['with']:.2f} s with them (99th percentile), "
        f"{waited_s['without']:.2f} s without: that is more than {allowed_s:.2f} s longer"
    ]


def sleepers(count: int, *, seed: int, prefix: str) -> list[Call]:
    """Return `count` calls that sleep until their limit."""
    enough = mix(math.ceil(count / SHARES[Kind.SLEEP]), seed=seed, prefix=prefix)
    return [call for call in enough if call.kind is Kind.SLEEP][:count]


async def compare_sleepers(server: Server, num_calls: int, *, num_slots: int, seed: int) -> list[report.Row]:
    """Judge the same calls behind sleepers and without any, in turn; print and return a row per run."""
    rows = []
    for number in range(_NUM_COMPARISONS):
        for name, num_sleepers in (("with", _SLEEPERS_PER_SLOT * num_slots), ("without", 0)):
            prefix = f"{name}-{number}"
            calls = mix(num_calls, seed=seed, prefix=prefix, without=frozenset({Kind.SLEEP}))
            calls = [*sleepers(num_sleepers, seed=seed, prefix=f"{prefix}-sleeper"), *calls]
            async with Client(server.url) as client:
                started_at = perf_counter()
                answers = await client.judge_all(calls)
                total_s = perf_counter() - started_at
            refuse_wrong(answers)
            waits = [answer.verdict["queue_time_s"] for answer in answers if answer.call.is_honest]
            rows.append(
                {
                    "sleepers": name,
                    "number": num_sleepers,
                    "slept s": sum(
                        answer.verdict["wall_time_s"] for answer in answers if answer.call.kind is Kind.SLEEP
                    ),
                    "total s": total_s,
                    **{f"queue s {at}": value for at, value in report.percentiles(waits).items()},
                }
            )
    report.print_table("how long honest programs wait", rows)
    return rows


async def measure(num_calls: int, *, seed: int) -> tuple[report.Row, list[str]]:
    """Start our judge and run all parts; return the figures, and the faults."""
    with servers.running("agentrl", servers.OURS) as server:
        async with Client(server.url) as client:
            health = await client.get("/v1/health")
            await client.judge_all(mix(_NUM_WARM_UP, seed=seed + 1, prefix="warm-up"))
        print(f"isolation tier {health['isolation']}, {health['num_slots']} slots")
        figures, answers = await run_mix(server, mix(num_calls, seed=seed))
        num_compared = max(num_calls // _COMPARED_SHARE, BATCH_SIZE)
        waits = await compare_sleepers(server, num_compared, num_slots=health["num_slots"], seed=seed)
    refuse_wrong(answers)
    faults = too_much_memory(figures["memory_mib"], num_calls=num_calls)
    if health["isolation"] != IsolationTier.D:
        faults += delay_faults(waits, num_slots=health["num_slots"])
    return {"isolation": health["isolation"], **figures, "sleepers": waits}, faults


def main() -> int:
    """Parse the arguments, measure and report; return the exit code, 1 if something is beyond its bound."""
    parser = report.arguments(__doc__)
    parser.add_argument("--calls", type=int, default=45_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    report.print_machine()
    figures, faults = uvloop.run(measure(options.calls, seed=options.seed))
    report.write_json(options.json, {**figures, "faults": faults})
    print("\n" + ("\n".join(faults) or "every verdict right, memory within its bound, nobody held up by sleepers"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
