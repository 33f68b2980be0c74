"""A long run of small steps: what its folder, its memory, its descriptors and its shared memory grow by with every step.

    python -m benchmarks.soak.training [--steps 400] [--json FILE] [section.key=value ...]

Trains the policy of the demo on steps of 32 trajectories, with real tools, judge, records and checkpoints, in a process group
of its own, and counts every few seconds what all its processes hold. At the end it prints the growth per step, fitted
to the samples after the first quarter, and what that comes to after 10,000 steps of 512 trajectories: records grow with
trajectories, everything else with steps.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from agentrl.observability.metrics_file import read_metrics
from benchmarks.judge import report
from benchmarks.soak.holdings import MIB, Sample, sample, size_of, slopes

_PROMPTS, _SAMPLES = 4, 8
_EVERY_S = 3.0
_WARM_UP_SHARE = 0.25
_LONG_STEPS, _LONG_TRAJECTORIES = 10_000, 512
_RECORDS = "trajectories"
_CONFIG = "configs/demo.yaml"
_FIXED = [
    f"rollout.prompts_per_step={_PROMPTS}",
    f"rollout.samples_per_prompt={_SAMPLES}",
    "algorithm.selection.keep=4",
    "validation.every_steps=0",
    "data.validation_files=[]",
    "checkpoint.every_steps=10",
    "actor.learning_rate=1.0e-9",  # a policy that has learnt its task leaves nothing to train on
]


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = report.arguments(__doc__)
    parser.add_argument("--steps", type=int, default=400, help="updates of the run")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value", help="change single keys of the run")
    options = parser.parse_args()
    report.print_machine()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        run_dir, scratch = Path(folder, "run"), Path(folder, "tmp")
        scratch.mkdir()
        words = [_CONFIG, f"run.dir={run_dir}", f"run.num_steps={options.steps}", *_FIXED, *options.overrides]
        samples = observe(words, run_dir, scratch, num_steps=options.steps)
        figures = evaluate(samples, run_dir)
    print_figures(figures)
    if options.json is not None:
        course = [{"step": sample.step, **sample.amounts} for sample in samples]
        options.json.write_text(
            json.dumps({"machine": report.machine(), "figures": figures, "samples": course}, indent=1)
        )
    return 0


def observe(words: Sequence[str], run_dir: Path, scratch: Path, *, num_steps: int) -> list[Sample]:
    """Run the command with `words`, and return what it held at each step that was seen, but the last, when processes end."""
    folders = {name: run_dir / name for name in (_RECORDS, "checkpoints", "metrics.jsonl", "tensorboard", "run.log")}
    folders |= {"temporary files": scratch}
    seen: list[Sample] = []
    with _started(words, scratch) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            time.sleep(_EVERY_S)
            step = _num_steps_done(run_dir)
            if 0 < step < num_steps and process.poll() is None:
                with contextlib.suppress(psutil.Error):
                    seen.append(sample(step, root, folders))
        if process.returncode != 0:
            raise SystemExit(f"the run ended with status {process.returncode}")
    return seen


@contextlib.contextmanager
def _started(words: Sequence[str], scratch: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "agentrl.runners.rstar2", *words]
    environment = os.environ | {"TMPDIR": str(scratch), "PYTHONWARNINGS": "ignore"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.wait()


def _num_steps_done(run_dir: Path) -> int:
    return int(max((row["step"] or 0 for row in read_metrics(run_dir / "metrics.jsonl")), default=0))


def evaluate(samples: Sequence[Sample], run_dir: Path) -> dict[str, dict[str, float]]:
    """Return the growth of each amount per step, and after the long run.

    Records are counted by trajectory and by token, from the files themselves.
    """
    rows = [row for row in read_metrics(run_dir / "metrics.jsonl") if row.get("rollout/trajectories")]
    num_trajectories = sum(row["rollout/trajectories"] or 0.0 for row in rows)
    num_tokens = sum(
        (row["rollout/trajectories"] or 0.0) * (row["rollout/response_tokens_mean"] or 0.0) for row in rows
    )
    record_bytes = size_of(run_dir / _RECORDS)
    figures: dict[str, dict[str, float]] = {}
    for name, slope in slopes(samples, leave_out_share=_WARM_UP_SHARE).items():
        factor = _LONG_TRAJECTORIES / (_PROMPTS * _SAMPLES) if name.startswith(_RECORDS) else 1.0
        at_end = samples[-1].amounts[name]
        figures[name] = {
            "at the end": at_end,
            "per step": slope,
            "after the long run": at_end + slope * factor * _LONG_STEPS,
        }
    figures["records, bytes"] = {
        "per trajectory": record_bytes / num_trajectories,
        "response tokens of one": num_tokens / num_trajectories,
        "GiB after the long run": record_bytes / num_trajectories * _LONG_TRAJECTORIES * _LONG_STEPS / MIB / 1024,
    }
    return figures


def print_figures(figures: dict[str, dict[str, float]]) -> None:
    """Print a table of the growth, then what the records come to."""
    records = figures["records, bytes"]
    rows = [{"what": name, **values} for name, values in figures.items() if name != "records, bytes"]
    title = f"growth; the long run has {_LONG_STEPS} steps of {_LONG_TRAJECTORIES} trajectories"
    report.print_table(title, rows)
    report.print_table("records", [{"what": name, "value": value} for name, value in records.items()])


if __name__ == "__main__":
    sys.exit(main())
