"""Random kills of a judge's parts: slots, zygotes, launchers and their helpers, but no judged program.

A program that dies of SIGKILL looks the same whoever sent it, so killing programs would change right verdicts.
"""

import asyncio
import collections
import random
from pathlib import Path

import psutil

_DEPTH_OF_SLOTS = {"C": 3, "D": 1}
"""Depth of slots below the server, where programs have no pid namespace: deeper processes are programs."""
_NAMES_BY_DEPTH = {1: "launcher", 2: "launcher", 3: "zygote", 4: "slot", 5: "helper of a slot"}


def victims(server: psutil.Process, isolation: str) -> list[tuple[str, psutil.Process]]:
    """Return the live parts of a judge below its server, each with its role."""
    parts = []
    layer = [server]
    for depth in range(1, 1 + _DEPTH_OF_SLOTS.get(isolation, max(_NAMES_BY_DEPTH))):
        layer = [child for parent in layer for child in _children(parent)]
        if isolation in _DEPTH_OF_SLOTS:
            role = "slot" if depth == _DEPTH_OF_SLOTS[isolation] else _NAMES_BY_DEPTH[depth]
            parts += [(role, process) for process in layer]
        else:
            judge_level = _namespace_level(server) + 1
            parts += [
                (_NAMES_BY_DEPTH[depth], process) for process in layer if 0 < _namespace_level(process) <= judge_level
            ]
    return parts


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _namespace_level(process: psutil.Process) -> int:
    """Return the number of pid namespaces in which it has an id, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(len(line.split()) - 1 for line in lines if line.startswith("NSpid:"))


async def kill_at_random(
    server: psutil.Process, isolation: str, killed: collections.Counter[str], *, pause_s: float, rng: random.Random
) -> None:
    """Kill one part every `pause_s` seconds on average, each role as often as the others, until cancelled."""
    while True:
        await asyncio.sleep(rng.expovariate(1 / pause_s))
        parts = victims(server, isolation)
        if not parts:
            continue
        role = rng.choice(sorted({name for name, _ in parts}))
        victim = rng.choice([process for name, process in parts if name == role])
        try:
            victim.kill()
        except psutil.NoSuchProcess:
            continue
        killed[role] += 1
