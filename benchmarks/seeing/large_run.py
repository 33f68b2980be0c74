"""A large run for the benchmarks of reading: the trajectories of a real run, repeated under new ids.

    python -m benchmarks.seeing.large_run RUN_DIR TO [--trajectories 1000000] [--per-step 1024]

Texts, tokens and times are those of `RUN_DIR`; its metrics are repeated, too. The same arguments give the same run.
"""

import argparse
import itertools
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agentrl.observability.metrics_file import MetricsFile, read_metrics
from agentrl.trajectories.store import TrajectoryStore, read_prompts, read_trajectories
from agentrl.types import Prompt, Trajectory


def main() -> None:
    """Write the run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("to", type=Path)
    parser.add_argument("--trajectories", type=int, default=1_000_000)
    parser.add_argument("--per-step", type=int, default=1024)
    arguments = parser.parse_args()
    source, num_steps = TrajectoryStore(arguments.run_dir), arguments.trajectories // arguments.per_step
    store, metrics = TrajectoryStore(arguments.to), MetricsFile(arguments.to / "metrics.jsonl")
    rows = itertools.cycle(read_metrics(arguments.run_dir / "metrics.jsonl")[1:])
    endless = itertools.chain.from_iterable(map(_recorded, itertools.cycle(source.files())))
    for step in range(1, num_steps + 1):
        batch = list(itertools.islice(endless, arguments.per_step))
        trajectories = [_renamed(trajectory, step, number) for number, (_, trajectory) in enumerate(batch)]
        prompts = {prompt.prompt_id: prompt for prompt, _ in batch}
        store.append(step, trajectories, prompts=prompts.values())
        store.record_fates(step, {"trained": [trajectory.trajectory_id for trajectory in trajectories]})
        metrics.append(
            step, {name: value for name, value in next(rows).items() if name != "step" and value is not None}
        )
    for name in ("config.yaml", "result.json"):
        shutil.copy(arguments.run_dir / name, arguments.to / name)


def _recorded(file: Path) -> Iterator[tuple[Prompt, Trajectory]]:
    prompts = read_prompts(file)
    return ((prompts[trajectory.prompt_id], trajectory) for trajectory in read_trajectories(file))


def _renamed(trajectory: Trajectory, step: int, number: int) -> Trajectory:
    return replace(trajectory, trajectory_id=f"{step}-{trajectory.prompt_id}-{number}", sample_index=number)


if __name__ == "__main__":
    main()
