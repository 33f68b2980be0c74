"""Writes a checkpoint of a run as a Hugging Face folder.

    python -m agentrl.runners.export config.yaml [--step N | --best] [--to PLACE] [section.key=value ...]

checkpoint, on disk or in an object store, of any number of ranks -> policy -> model folder. One process on the CPU, without
Ray, judge or data. The run is neither changed nor held up: it may go on meanwhile, be finished, or have died.
"""

import sys

from agentrl.checkpoints.atomic_folder import written_whole
from agentrl.checkpoints.contents import RunState, by_accuracy
from agentrl.checkpoints.store import CheckpointStore
from agentrl.config.load import load_run_config
from agentrl.config.schema.run import RunConfig
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.run.directory import RunDirectory
from agentrl.run.preflight.models.dtype import choose_dtype
from agentrl.run.preflight.models.folders import check_model_path
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import make_parser, run_blocking
from agentrl.training.export import export_checkpoint


def export(config: RunConfig, *, step: int | None = None, best: bool = False, to: str | None = None) -> str:
    """Write the policy of a checkpoint as a folder that `AutoModelForCausalLM`, vLLM and an evaluation load.

    Args:
        config: of the run.
        step: of the checkpoint; absent: the newest, or with `best` that of the highest validation accuracy.
        best: see `step`.
        to: an empty or new folder, or the URL of one in a store; absent: `exported/step_000010` in `run.dir`.

    Returns:
        A line for a person.

    Raises:
        ConfigError: there is no such checkpoint, it is that of another policy, or the place cannot be used.
        CheckpointError: the checkpoint cannot be read.
    """
    check_model_path(config.model.path)
    directory = RunDirectory(config)
    store = directory.checkpoints
    state = chosen_checkpoint(store, step=step, best=best)
    directory.refuse_other_policy()
    place = str(directory.exported(state.step)) if to is None else to
    with written_whole(place) as partial:
        export_checkpoint(f"{store.url_of(state.step)}/actor", config, str(partial))
    accuracy = "" if state.accuracy is None else f", validation accuracy {state.accuracy:.3f}"
    return f"policy of step {state.step}{accuracy}: {place}"


def chosen_checkpoint(store: CheckpointStore, *, step: int | None, best: bool) -> RunState:
    """Return the state of the checkpoint that is asked for.

    Raises:
        ConfigError: there is none; the message says which there are.
    """
    if step is not None and (state := store.state(step)) is not None:
        return state  # whatever the others are
    states = store.states()
    if not states:
        raise ConfigError(
            f"no checkpoint in {store.url}; name the run with `run.dir=...` (or `checkpoint.dir=...`), or wait until it has one"
        )
    candidates = by_accuracy(states) if best else states
    if step is not None or not candidates:
        missing = f"of step {step}" if step is not None else "with a validation accuracy"
        steps = ", ".join(str(state.step) for state in states)
        raise ConfigError(f"no checkpoint {missing} in {store.url}; `--step` takes one of: {steps}")
    return candidates[-1]


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser("export", "Write a checkpoint of a run as a Hugging Face folder.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, metavar="N", help="the checkpoint after update N (default: the newest)")
    which.add_argument("--best", action="store_true", help="the one with the highest validation accuracy")
    parser.add_argument(
        "--to",
        metavar="PLACE",
        help="a folder, or a URL such as s3://bucket/policy (default: exported/step_N in `run.dir`)",
    )
    arguments = parser.parse_intermixed_args()

    def command(stop: StopRequest) -> None:
        loaded = load_run_config(arguments.config, arguments.overrides, purpose=Purpose.EXPORT)
        config = choose_dtype(loaded)[0].config
        print(export(config, step=arguments.step, best=arguments.best, to=arguments.to))

    return run_blocking(command, when_stopped="nothing was written")


if __name__ == "__main__":
    sys.exit(main())
