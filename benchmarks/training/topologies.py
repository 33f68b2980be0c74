"""Accuracy of the demo with its roles in one process and in several, on one, two and four ranks.

    python -m benchmarks.training.topologies [--config configs/demo_ppo.yaml] [--steps 20] [--seeds 1 2 3] [--json FILE]

Every topology trains with every seed, by the real command. The number of ranks changes the last digits of an update, so sampled
tokens differ sooner or later; the accuracy on the held-out prompts must agree as well as between seeds.

The bar for the difference of two topologies is three standard errors. The variance of a run is the larger of the pooled
variance between seeds and that of drawing one answer to each held-out prompt. The exit status is 1 if a topology differs by
more from the first one, or has learnt less than the bar.
"""

import argparse
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentrl.config.layout import needed_components
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.observability.metrics_file import read_metrics, series
from benchmarks.judge import report

CONFIG = "configs/demo_ppo.yaml"
STANDARD_ERRORS = 3.0
"""Standard errors beyond which a difference is significant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Roles with their numbers of processes. Example: `{"actor_ref": 2, "rollout": 1}`."""

    name: str
    processes: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """Result of a run."""

    first: float
    """Accuracy before the first update."""
    last: float
    """Accuracy after the last one."""
    stderr: float
    """Standard error of `last`, from drawing one answer to each held-out prompt."""
    seconds: float = 0.0


def topologies(config: RunConfig) -> list[Topology]:
    """Return four topologies of the roles that a config needs; the first is the reference."""
    components = needed_components(config)
    models = "_".join(component for component in components if component != "rollout")
    return [
        Topology(name="each in its own process", processes=dict.fromkeys(components, 1)),
        Topology(name="all in one process", processes={"_".join(components): 1}),
        Topology(name="models on 2 ranks", processes={models: 2, "rollout": 1}),
        Topology(name="models on 4 ranks", processes={models: 4, "rollout": 1}),
    ]


def places(processes: Mapping[str, int]) -> list[str]:
    """Return the overrides that give each role its own pool of processes."""
    pools = ", ".join(f"{role}: {{num_processes: {number}}}" for role, number in processes.items())
    roles = ", ".join(f"{role}: {role}" for role in processes)
    return [f"cluster.pools={{{pools}}}", f"cluster.roles={{{roles}}}"]


def train(config: str, topology: Topology, *, seed: int, num_steps: int) -> Learnt:
    """Run the demo with a topology in a new folder.

    Raises:
        RuntimeError: the run failed; the error has the end of its output.
    """
    folder, started_at = Path(tempfile.mkdtemp(prefix="t-")), time.monotonic()
    run_dir, temporary = folder / "run", folder / "t"
    temporary.mkdir()
    words = [f"run.dir={run_dir}", f"run.seed={seed}", f"run.num_steps={num_steps}", *places(topology.processes)]
    words += [f"validation.every_steps={num_steps}", f"checkpoint.every_steps={num_steps}"]
    command = [sys.executable, "-m", "agentrl.runners.rstar2", config, *words]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(temporary)})
    if done.returncode != 0:
        output = (done.stdout + done.stderr)[-2000:]
        raise RuntimeError(f"{topology.name}, seed {seed}: exit status {done.returncode}; see {run_dir}\n{output}")
    learnt = learnt_in(run_dir, seconds=time.monotonic() - started_at)
    assert learnt is not None  # it has validated
    shutil.rmtree(folder)
    return learnt


def learnt_in(run_dir: Path, *, seconds: float) -> Learnt | None:
    """Return the result of a finished run from its metrics; None if it never measured its accuracy."""
    rows = read_metrics(run_dir / "metrics.jsonl")
    _, accuracies = series(rows, "validation/accuracy")
    _, stderrs = series(rows, "validation/accuracy_stderr")
    if not accuracies:
        return None
    return Learnt(first=accuracies[0], last=accuracies[-1], stderr=stderrs[-1], seconds=seconds)


def compare(runs: Mapping[str, Sequence[Learnt]]) -> tuple[list[report.Row], list[str]]:
    """Return a row for each topology, and descriptions of the differences beyond the bar.

    Args:
        runs: runs of each topology, one per seed.
    """
    num_seeds = len(next(iter(runs.values())))
    bar = STANDARD_ERRORS * math.sqrt(_variance_of_a_run(runs) * 2 / num_seeds)
    means = {name: statistics.fmean(run.last for run in of_seeds) for name, of_seeds in runs.items()}
    reference = next(iter(means.values()))
    rows, faults = [], []
    for name, of_seeds in runs.items():
        gain = means[name] - statistics.fmean(run.first for run in of_seeds)
        difference = means[name] - reference
        row: report.Row = {
            "topology": name,
            "start": statistics.fmean(run.first for run in of_seeds),
            "end": means[name],
            "of each seed": " ".join(f"{run.last:.3f}" for run in of_seeds),
            "difference": difference,
            "bar": bar,
            "seconds": statistics.fmean(run.seconds for run in of_seeds),
        }
        rows.append(row)
        if abs(difference) > bar:
            faults.append(f"{name}: {difference:+.3f} from the first topology, and the bar is {bar:.3f}")
        if gain <= bar:
            faults.append(f"{name}: learnt {gain:+.3f}, no more than the bar of {bar:.3f}, so that it says nothing")
    return rows, faults


def _variance_of_a_run(runs: Mapping[str, Sequence[Learnt]]) -> float:
    by_chance = statistics.fmean(run.stderr**2 for of_seeds in runs.values() for run in of_seeds)
    if any(len(of_seeds) < 2 for of_seeds in runs.values()):
        return by_chance
    between_seeds = statistics.fmean(statistics.variance(run.last for run in of_seeds) for of_seeds in runs.values())
    return max(by_chance, between_seeds)


def main() -> int:
    """Train with all topologies and seeds, and compare."""
    parser = report.arguments(__doc__)
    parser.add_argument("--config", default=CONFIG)
    parser.add_argument("--steps", type=int, default=20, help="updates of each run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    options: argparse.Namespace = parser.parse_args()
    report.print_machine()
    chosen = topologies(load_run_config(options.config).config)
    runs: dict[str, list[Learnt]] = {topology.name: [] for topology in chosen}
    for seed in options.seeds:
        for topology in chosen:
            learnt = train(options.config, topology, seed=seed, num_steps=options.steps)
            runs[topology.name].append(learnt)
            print(
                f"{topology.name}, seed {seed}: {learnt.first:.3f} to {learnt.last:.3f}, {learnt.seconds:.0f} s",
                flush=True,
            )
    rows, faults = compare(runs)
    report.print_table(f"{options.config}, {options.steps} updates: accuracy on the held-out prompts", rows)
    print(*faults, sep="\n")
    report.write_json(options.json, {"topologies": rows, "faults": faults})
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
