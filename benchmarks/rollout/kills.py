"""Runs in which one process is killed at a random moment, whatever it does there, and what became of them.

    python -m benchmarks.rollout.kills [--runs 20] [--seed 0] [--victims engine worker judge] [--json FILE]

Each is a short run of the PPO demo: real judge, Ray, engines, and actor, critic and reward model in processes of their own.
Where the worker is killed that holds the judge of its node, it is one with `judge.placement=per_node`.
One process is killed with `kill -9` at a random moment of the start, of a step or of the end. The run must finish by itself, as
accurate as one in which nobody died, up to chance; its directory must show that every step ended, that every prompt is
accounted for once, and that no trajectory carries tokens of two episodes (`accounting.py`); and nothing of it may be left.
"""

import argparse
import math
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.judge import report
from benchmarks.rollout.accounting import num_infra_errors
from benchmarks.rollout.killed_run import Kill, Outcome, Victim, play
from benchmarks.training.topologies import STANDARD_ERRORS, Learnt, places

_CONFIG = "configs/demo_ppo.yaml"
_NUM_STEPS = 10
_OF_DEMO = tuple(victim for victim in Victim if victim is not Victim.AGENT)


def accuracy_faults(learnt: Learnt, undisturbed: Learnt) -> list[str]:
    """Return whether a run came out less accurate than one in which nobody died, by more than chance."""
    bar = STANDARD_ERRORS * math.hypot(learnt.stderr, undisturbed.stderr)
    if learnt.last >= undisturbed.last - bar:
        return []
    return [f"accuracy {learnt.last:.3f}, and {undisturbed.last:.3f} where nobody died, with a bar of {bar:.3f}"]


def soak(num_runs: int, *, seed: int, victims: Sequence[Victim] = _OF_DEMO) -> list[report.Row]:
    """Play so many runs with one kill each, each of `victims` as often as the others, and return a row for each.

    Raises:
        RuntimeError: the run in which nobody is killed has a fault, or learns nothing.
    """
    undisturbed = _undisturbed()
    rng, rows = random.Random(seed), []
    for number in range(num_runs):
        victim = victims[number % len(victims)]
        kill = Kill(victim=victim, step=rng.randint(0, _NUM_STEPS + 1), moment=rng.random())
        num_engines, num_workers = rng.randint(1, 2), rng.randint(1, 2)
        folder = Path(tempfile.mkdtemp(prefix="k-"))
        outcome = _play_apart(folder, [kill], num_engines=num_engines, num_workers=num_workers)
        if outcome.learnt is not None:
            outcome.faults += accuracy_faults(outcome.learnt, undisturbed)
        row: report.Row = {
            "run": number,
            "killed": victim.value,
            "in step": kill.step,
            "at": kill.moment,
            "engines": num_engines,
            "workers": num_workers,
            "seconds": outcome.seconds,
            "infra errors": num_infra_errors(outcome.run_dir),
            "accuracy": math.nan if outcome.learnt is None else outcome.learnt.last,
            "faults": len(outcome.faults),
        }
        print(row, *outcome.faults, sep="\n  ", flush=True)
        rows.append(row)
        if outcome.faults:
            print(f"  see {folder}", flush=True)
        else:
            shutil.rmtree(folder)
    return rows


def _play_apart(folder: Path, kills: Sequence[Kill], *, num_engines: int = 1, num_workers: int = 1) -> Outcome:
    """Play the PPO demo with each of its models in a process of its own."""
    overrides = places({"actor_ref": 1, "critic": 1, "reward": 1, "rollout": num_engines})
    overrides += [f"rollout.num_workers={num_workers}", f"validation.every_steps={_NUM_STEPS}"]
    return play(folder, kills, config=_CONFIG, overrides=overrides, num_steps=_NUM_STEPS)


def _undisturbed() -> Learnt:
    """Return what the run comes to without a kill: a bar that a run without learning would miss."""
    folder = Path(tempfile.mkdtemp(prefix="k-"))
    outcome = _play_apart(folder, [])
    learnt = outcome.learnt
    if outcome.faults or learnt is None:
        raise RuntimeError(f"the run without a kill has faults: {outcome.faults}; see {folder}")
    print(f"nobody killed: accuracy {learnt.first:.3f} to {learnt.last:.3f}, {learnt.seconds:.0f} s", flush=True)
    if learnt.last <= learnt.first + STANDARD_ERRORS * math.sqrt(2) * learnt.stderr:
        raise RuntimeError(f"the run without a kill learnt nothing: {learnt}; see {folder}")
    shutil.rmtree(folder)
    return learnt


def main() -> int:
    """Play all runs; return 1 if something was lost, mixed up or left, or less was learnt."""
    parser = report.arguments(__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--victims", type=Victim, nargs="+", choices=_OF_DEMO, default=_OF_DEMO)
    options: argparse.Namespace = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the run under way is ended too
    report.print_machine()
    rows = soak(options.runs, seed=options.seed, victims=options.victims)
    report.print_table(f"{len(rows)} runs with one kill each", rows)
    report.write_json(options.json, {"runs": rows})
    return 1 if any(row["faults"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
