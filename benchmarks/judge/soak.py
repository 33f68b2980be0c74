"""Mixed load for half an hour while parts of the judge are killed at random: nothing is lost, and nothing grows.

    python -m benchmarks.judge.soak [--minutes 30] [--json FILE]

Several clients send the mix of `mix.py` in batches, streams and single calls; some close their connection in the middle and
send the same again, some set a deadline that is too short; one holds sessions, and checks their state at every cell. Each sends
refused requests (429 or 503) again after the time it is told; a 500 is a fault.
Meanwhile a slot, a zygote, the launcher or a helper is killed every few seconds. Every call must get one verdict, the right
one; an `internal_error` must say which slots were lost over it, and the same call, sent again, must be judged.

At *quiet points*, about sixty, the load stops until the judge is idle, and what it holds is counted: memory, descriptors,
processes, mounts, control groups, temporary files, and strays that it lost. The last third of the points is compared with the
first third after the warm-up. At the end the server is stopped, and nothing may be left.
"""

import asyncio
import collections
import random
import sys
import tempfile
from pathlib import Path
from time import monotonic

import psutil
import uvloop

from benchmarks.judge import report, servers
from benchmarks.judge.client import BATCH_SIZE, Client
from benchmarks.judge.faults import kill_at_random
from benchmarks.judge.programs import Kind, mix
from benchmarks.judge.resources import (
    ALLOWED_GROWTH,
    Holdings,
    count_cgroups,
    count_files,
    count_strays,
    growth,
    holdings,
)
from benchmarks.judge.servers import Server
from benchmarks.judge.session_traffic import drive_sessions
from benchmarks.judge.traffic import KEEP_ALIVE_S, Gate, Tally, drive
from code_judge_server.jail.kernel.orphans import adopt

_NUM_CLIENTS = 4
_NUM_QUIET_POINTS = 60
_MIN_QUIET_EVERY_S = 4.0
_WARM_UP_SHARE = 0.1
_KILLS_PER_PHASE = 4.0
"""Kills between two quiet points, or one kill in three seconds if those are far apart."""
_MAX_KILL_PAUSE_S = 3.0
_IDLE_TIMEOUT_S = 60.0
_SETTLE_S = 1.0
_NUM_SHOWN = 5
_MAX_ROUNDS = 10
_NOT_HONEST = frozenset(Kind) - {Kind.PLAIN, Kind.SCIENTIFIC}


class NeverIdleError(Exception):
    """The judge has work left although nobody waits for it."""


class Observer:
    """Waits until a judge is whole and idle, and counts its resources.

    Args:
        client: Client of the judge.
        server: Its process.
        temporary: Its folder for temporary files.
    """

    def __init__(self, client: Client, server: psutil.Process, temporary: Path) -> None:
        self._client = client
        self._server = server
        self._temporary = temporary
        self._num_rounds = 0
        self._num_processes = 0
        """Number of processes before the first kill."""

    async def observe(self) -> Holdings:
        """Use every slot, so that killed parts are restarted, wait until nothing runs, and count.

        Raises:
            NeverIdleError: the judge does not become idle.
        """
        held = await self._use_and_count()
        self._num_processes = self._num_processes or int(held["processes"])
        for _ in range(_MAX_ROUNDS):
            if held["processes"] == self._num_processes:
                break
            held = await self._use_and_count()
        return held

    async def _use_and_count(self) -> Holdings:
        # New ids: the verdicts must not come from the judge's cache.
        prefix, self._num_rounds = f"quiet-{self._num_rounds}", self._num_rounds + 1
        await self._client.judge_all(mix(BATCH_SIZE, seed=0, prefix=prefix, without=_NOT_HONEST))
        await self._wait_until_idle()
        await asyncio.sleep(_SETTLE_S)
        return await asyncio.to_thread(holdings, self._server, self._temporary)

    async def _wait_until_idle(self) -> None:
        deadline = monotonic() + _IDLE_TIMEOUT_S
        while (health := await self._client.get("/v1/health"))["num_running"] or health["queue_length"]:
            if monotonic() > deadline:
                raise NeverIdleError(f"{health['num_running']} run and {health['queue_length']} wait, for nobody")
            await asyncio.sleep(0.1)


async def load_and_kill(
    server: Server,
    temporary: Path,
    *,
    seconds: float,
    tally: Tally,
    killed: collections.Counter[str],
    refused: collections.Counter[int],
) -> tuple[Holdings, list[Holdings]]:
    """Run clients and killer; return the judge's resources at the start, and at every quiet point after the warm-up."""
    points: list[Holdings] = []
    gate, rng = Gate(), random.Random(0)
    quiet_every_s = max(seconds / _NUM_QUIET_POINTS, _MIN_QUIET_EVERY_S)
    kill_pause_s = min(quiet_every_s / _KILLS_PER_PHASE, _MAX_KILL_PAUSE_S)
    async with Client(server.url, "observer", keep_alive_s=KEEP_ALIVE_S) as client:
        isolation = (await client.get("/v1/health"))["isolation"]
        print(f"isolation tier {isolation}; a quiet point every {quiet_every_s:.0f} s", flush=True)
        observer = Observer(client, server.process, temporary)
        whole = await observer.observe()
        warm_at, end_at = monotonic() + _WARM_UP_SHARE * seconds, monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(drive(server.url, f"client-{number}", gate, tally)) for number in range(_NUM_CLIENTS)
            ]
            clients.append(group.create_task(drive_sessions(server.url, "sessions", gate, tally, refused)))
            while monotonic() < end_at:
                killing = kill_at_random(server.process, isolation, killed, pause_s=kill_pause_s, rng=rng)
                killer = group.create_task(killing)
                await asyncio.sleep(quiet_every_s)
                killer.cancel()
                await gate.close()
                held = await observer.observe()
                if monotonic() >= warm_at:
                    points.append(held)
                gate.open()
            for task in clients:
                task.cancel()
    return whole, points


def faults_found(
    tally: Tally,
    killed: collections.Counter[str],
    refused: collections.Counter[int],
    grown: Holdings,
    left: Holdings,
) -> list[str]:
    """Return the faults, as text."""
    faults = [
        f"wrong verdict: {a.call.submission} expected {a.call.expected} got {a.verdict}"
        for a in tally.wrong[:_NUM_SHOWN]
    ]
    if tally.wrong:
        faults.append(f"{len(tally.wrong)} wrong verdicts in all")
    faults += [f"{number} times {words}" for words, number in tally.errors.items()]
    if tally.not_judged["internal_error"] > sum(killed.values()):
        faults.append(f"{tally.not_judged['internal_error']} internal errors by {sum(killed.values())} kills")
    if refused[503] > sum(killed.values()):
        faults.append(f"{refused[503]} times 503 for sessions by {sum(killed.values())} kills")
    faults += [f"internal error without its reason: {words}" for words in tally.internal_errors if "slot" not in words]
    faults += [f"{name} grew by {amount:.1f}" for name, amount in grown.items() if amount > ALLOWED_GROWTH[name]]
    return [*faults, *(f"{name} left after the end: {amount:g}" for name, amount in left.items() if amount)]


async def soak(seconds: float) -> tuple[report.Row, list[str]]:
    """Start our judge, load it, kill its parts, stop it; print and return the figures and the faults."""
    adopt()  # to adopt the judge's orphans
    tally, killed, refused = Tally(), collections.Counter[str](), collections.Counter[int]()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        # A small cache is full after the warm-up, and does not look like growth.
        with servers.running("agentrl", servers.OURS, "--verdict-cache-mb", "1", temporary=folder) as server:
            try:
                whole, points = await load_and_kill(
                    server, Path(folder), seconds=seconds, tally=tally, killed=killed, refused=refused
                )
            except ExceptionGroup as group:
                async with Client(server.url, "observer") as observer:
                    group.add_note(f"the judge's health: {await observer.get('/v1/health')}")
                group.add_note(f"the end of its log:\n{server.log_end()}")
                raise
        left = {
            "control groups": float(count_cgroups(server.process.pid)),
            "strays": float(count_strays(server.process)),
            "temporary files": max(count_files(Path(folder)) - whole["files"], 0.0),
        }
    report.print_table(
        "verdicts",
        [
            {
                "calls": tally.num_calls,
                "wrong": len(tally.wrong),
                "sent again after: abandoned requests": tally.num_abandoned,
                **{status: tally.not_judged[status] for status in ("internal_error", "queue_timeout", "cancelled")},
                "429s": tally.num_refused,
            }
        ],
    )
    sessions = {
        "sessions": tally.num_sessions,
        "lost to kills": tally.num_sessions_lost,
        "cells": tally.num_cells,
        "429s": refused[429],
        "503s": refused[503],
    }
    report.print_table("sessions", [sessions])
    report.print_table("killed", [dict(sorted(killed.items())) or {"nothing": 0}])
    for words, number in tally.internal_errors.most_common():
        print(f"  {number} internal errors: {words}")
    grown = growth(whole, points)
    rows = [
        {"held": name, "first": points[0][name], "last": points[-1][name], "grew by": grown[name], "allowed": allowed}
        for name, allowed in ALLOWED_GROWTH.items()
    ]
    report.print_table(f"{len(points)} quiet points", rows)
    figures = {
        "calls": tally.num_calls,
        "sessions": sessions,
        "killed": killed,
        "holdings": rows,
        "internal_errors": tally.internal_errors,
    }
    return figures, faults_found(tally, killed, refused, grown, left)


def main(words: list[str] | None = None) -> int:
    """Parse the arguments, run and report; return the exit code, 1 if something was lost, wrong, left or grew."""
    parser = report.arguments(__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    options = parser.parse_args(words)
    report.print_machine()
    figures, faults = uvloop.run(soak(60 * options.minutes))
    report.write_json(options.json, {**figures, "faults": faults})
    print("\n" + ("\n".join(faults) or "nothing lost, nothing wrong, nothing left, nothing grew"))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
