"""Shows what a run has recorded, in a terminal or as JSON lines.

    python -m agentrl.runners.show RUN_DIR                    a line per step
    python -m agentrl.runners.show RUN_DIR 12                 a line per trajectory of step 12; validation_12: of its validation
    python -m agentrl.runners.show RUN_DIR 12-train-17-0      a conversation
    python -m agentrl.runners.show RUN_DIR 12 --json          every field, for `jq`

It reads files only, so it shows a run that goes on, one that crashed, and one on a read-only disk.
"""

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from agentrl.errors import ConfigError
from agentrl.observability.json_lines import encode_line
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import run_blocking
from agentrl.trajectories.codec import encode_prompt, encode_trajectory
from agentrl.trajectories.store import TrajectoryStore, read_heads, read_prompts, read_trajectories
from agentrl.trajectories.transcripts import describe_ending, transcript

_STEP = re.compile(r"(validation_)?(\d+)")
_COLUMNS = {
    "trajectory": "trajectory_id",
    "reward": "reward",
    "ended by": "termination",
    "turns": "num_turns",
    "calls": "num_tool_calls",
    "failed": "num_failed_tool_calls",
    "tokens": "num_tokens",
    "seconds": "wall_time_s",
}
_PIPED_WIDTH = 200
"""Width of a table that no terminal shows."""


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m agentrl.runners.show", description="Show what a run has recorded.")
    parser.add_argument("run_dir", type=Path, help="folder of the run")
    parser.add_argument(
        "what", nargs="?", help="a step, `validation_STEP`, or the id of a trajectory (default: all steps)"
    )
    parser.add_argument("--json", action="store_true", help="JSON lines with every field")
    arguments = parser.parse_args()

    def command(_stop: StopRequest) -> None:
        show(arguments.run_dir, arguments.what, as_json=arguments.json)

    return run_blocking(command, when_stopped="nothing was changed")


def show(run_dir: Path, what: str | None, *, as_json: bool = False) -> None:
    """Print the steps of a run, the trajectories of one step, or one conversation.

    Raises:
        ConfigError: there is no such run, step or trajectory.
    """
    store = TrajectoryStore(run_dir)
    files = store.files()
    if not files:
        raise ConfigError(f"{run_dir}: no recorded trajectories; name the `run.dir` of a run that has finished a step")
    step = _STEP.fullmatch(what) if what else None
    if what is None:
        _print_steps(files, as_json=as_json)
    elif step is None:
        _print_trajectory(store, what, as_json=as_json)
    else:
        file = store.file(int(step[2]), validation=bool(step[1]))
        if not file.exists():
            raise ConfigError(f"{file}: no such step; the run has {files[0].stem} to {files[-1].stem}")
        _print_step(file, {} if step[1] else store.fates(int(step[2])), as_json=as_json)


def _print_steps(files: Sequence[Path], *, as_json: bool) -> None:
    rows = [_step_row(file) for file in files]
    _print_rows(rows, as_json=as_json)


def _step_row(file: Path) -> dict[str, Any]:
    heads = list(read_heads(file))
    rewards = [head.reward for head in heads if head.reward is not None]
    return {
        "step": file.stem,
        "trajectories": len(heads),
        "mean reward": fmean(rewards) if rewards else None,
        "no reward": len(heads) - len(rewards),
        "calls": sum(head.num_tool_calls for head in heads),
        "failed": sum(head.num_failed_tool_calls for head in heads),
        "tokens": sum(head.num_tokens for head in heads),
    }


def _print_step(file: Path, fates: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        _print_records(file)
        return
    rows = [
        {title: getattr(head, name) for title, name in _COLUMNS.items()} | {"use": fates.get(head.trajectory_id, "")}
        for head in read_heads(file)
    ]
    _print_rows(rows, as_json=False)


def _print_trajectory(store: TrajectoryStore, trajectory_id: str, *, as_json: bool) -> None:
    step, _, _ = trajectory_id.partition("-")
    found = False
    for validation in (False, True) if step.isdigit() else ():
        file = store.file(int(step), validation=validation)
        for trajectory in read_trajectories(file):
            if trajectory.trajectory_id != trajectory_id:
                continue
            found = True
            if as_json:
                _write(encode_line(encode_trajectory(trajectory)))
                continue
            print(f"{file.stem}: {describe_ending(trajectory)}")
            print("\n".join(transcript(trajectory, read_prompts(file).get(trajectory.prompt_id))))
    if not found:
        raise ConfigError(
            f"{trajectory_id}: no trajectory has this id. `show RUN_DIR STEP` lists those of a step (`STEP-PROMPT-SAMPLE`)"
        )


def _print_records(file: Path) -> None:
    for prompt in read_prompts(file).values():
        _write(encode_line(encode_prompt(prompt)))
    for trajectory in read_trajectories(file):
        _write(encode_line(encode_trajectory(trajectory)))


def _print_rows(rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        for row in rows:
            _write(encode_line(row))
        return
    table = Table(box=None, pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="left" if isinstance(rows[0][name], str) else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH).print(table)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "" if value is None else f"{value}"


def _write(line: bytes) -> None:
    sys.stdout.buffer.write(line)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main())
