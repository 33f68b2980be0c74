"""Searches a run's trajectories for signs of trouble, and shows how they spread over its steps.

    python -m agentrl.runners.detect RUN_DIR                            the shipped detectors
    python -m agentrl.runners.detect RUN_DIR --config detectors.yaml    with your own
    python -m agentrl.runners.detect RUN_DIR --json                     one object per detector

It reads files only, so the run may go on or have crashed.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from statistics import fmean

from agentrl.detectors.curves import Curve, curves_of
from agentrl.detectors.scan import scan_in_processes
from agentrl.detectors.user_detectors import load_detectors
from agentrl.errors import ConfigError, DataError
from agentrl.observability.json_lines import encode_line
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import run_blocking
from agentrl.trajectories.store import TrajectoryStore

_BLOCKS = "▁▂▃▄▅▆▇█"
_WIDTH = 60


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m agentrl.runners.detect", description="Search the trajectories of a run for signs of trouble."
    )
    parser.add_argument("run_dir", type=Path, help="folder of the run")
    parser.add_argument(
        "--config", type=Path, help="your detectors: a list of `{name, regex, where}` or `{name, class_name}`"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines with every figure")
    arguments = parser.parse_args()

    def command(_stop: StopRequest) -> None:
        detect(arguments.run_dir, arguments.config, as_json=arguments.json)

    return run_blocking(command, when_stopped="nothing was changed")


def detect(run_dir: Path, config: Path | None = None, *, as_json: bool = False) -> None:
    """Print what every detector finds in the training rollouts of a run, or in the validation of one that has none.

    Raises:
        ConfigError: there is no such run, or a detector is wrong.
        DataError: detectors failed; the others are printed.
    """
    detectors = load_detectors(config)
    files = TrajectoryStore(run_dir).files()
    files = [file for file in files if file.stem.startswith("step_")] or files
    if not files:
        raise ConfigError(f"{run_dir}: no recorded trajectories; name the `run.dir` of a run that has finished a step")
    curves = curves_of(scan_in_processes(files, config), detectors)
    for curve in curves:
        if as_json:
            points = [asdict(point) | {"share": point.share} for point in curve.points]
            sys.stdout.buffer.write(encode_line(asdict(curve) | {"points": points}))
        else:
            print("\n".join(_lines(curve)), end="\n\n")
    sys.stdout.flush()
    if failed := [curve.name for curve in curves if curve.problem]:
        problems = "; ".join(f"`{curve.name}`: {curve.problem}" for curve in curves if curve.problem)
        raise DataError(f"{len(failed)} of {len(curves)} detectors were given up. {problems}")


def _lines(curve: Curve) -> Iterator[str]:
    limit = "" if curve.threshold is None else f" ({curve.threshold:g})"
    yield f"{curve.name}: {curve.meaning}{limit}"
    if curve.problem:
        yield f"  given up at {curve.problem}"
        return
    if not curve.num_hit:
        yield f"  no hit in {sum(point.num_trajectories for point in curve.points):,} trajectories"
        return
    first, last, most = curve.points[0], curve.points[-1], max(curve.points, key=lambda point: point.share)
    ends = f"step {first.step}: {first.share:.1%}, step {last.step}: {last.share:.1%}"
    shares = _spark([point.share for point in curve.points], 0.0, most.share)
    yield _row(f"share hit, 0 to {most.share:.1%}", f"{shares}  {ends}")
    hit, other = curve.hit_rewards, curve.other_rewards
    rewards = [0.0, *(reward for reward in (*hit, *other) if reward is not None)]
    for title, values, mean in (
        ("reward where hit", hit, curve.mean_hit_reward),
        ("reward elsewhere", other, curve.mean_other_reward),
    ):
        if mean is not None:
            yield _row(title, f"{_spark(values, min(rewards), max(rewards))}  {mean:.3f} in all")
    changes = "; ".join(f"step {item.step}: {item.before:.1%} -> {item.after:.1%}" for item in curve.changes)
    yield _row("changed most", changes or "no change beyond chance")
    yield _row("such as", ", ".join(curve.examples))


def _row(title: str, text: str) -> str:
    return f"  {title:<24}{text}"


def _spark(values: Sequence[float | None], low: float, high: float) -> str:
    """Return a curve of at most 60 characters, each the mean of its steps; a space where there is no value."""
    width = min(_WIDTH, len(values))
    ends = [index * len(values) // width for index in range(width + 1)]
    cells = ([v for v in values[start:end] if v is not None] for start, end in pairwise(ends))
    scale = (len(_BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(_BLOCKS[round((fmean(cell) - low) * scale)] if cell else " " for cell in cells)


if __name__ == "__main__":
    sys.exit(main())
