"""Warm start by imitation: `python -m agentrl.runners.sft config.yaml [section.key=value ...] [--check]`.

    dialogues (JSONL, Parquet) -> tokens and mask -> next-token loss on what the assistant wrote -> model folder

Dialogues are tokenised as a rollout would have produced them (`ChatTokens.conversation`), tool results included, so that
the policy meets no other tokens later. One process, no Ray. The same command goes on with a run that was stopped or killed, to
the weights that it would have had otherwise.
"""

import os
import time

from agentrl.config.schema.sft import SftConfig
from agentrl.config.sft_load import load_sft_config
from agentrl.run.sft.check import check
from agentrl.run.sft.run import SftRun, prepare, running
from agentrl.run.stop_request import StopRequest
from agentrl.runners.command_line import exit_process, make_parser, run_blocking


def train(config: SftConfig, stop: StopRequest) -> None:
    """Train from the last checkpoint, or from the start, until all steps are done; print the result."""
    plan = prepare(config)  # whatever can be wrong is found here
    if plan.data is not None:
        with running(plan, stop) as run:  # model and optimiser
            train_from_checkpoint(run)
    print(plan.directory.describe_result())


def train_from_checkpoint(run: SftRun) -> None:
    """Make the steps that are missing after the last checkpoint, and write the model."""
    step = run.restore()
    # A signal is noted from here on: the update that is under way is finished, and what is done is saved.
    with run.stop.deferred():
        if step == 0:
            run.log(0, run.held_out_loss(0))
        while step < run.num_steps and not run.stop.requested:
            step += 1
            train_step(run, step)
        run.save(step)
    run.finish()


def train_step(run: SftRun, step: int) -> None:
    """Make update `step`, and keep a checkpoint when it is time."""
    started = time.monotonic()
    run.progress.start_phase(f"step {step}")
    metrics = run.trainer.step(run.batch(step))
    step_s = time.monotonic() - started
    times = {"time/step_s": step_s, "sft/tokens_per_s": metrics["sft/tokens"] / step_s}
    run.log(step, metrics | times | run.held_out_loss(step))
    run.progress.finish_step()
    if step % run.config.checkpoint.every_steps == 0:
        run.save(step)


def main() -> int:
    """Run the command line; returns the exit status."""
    # Before torch and transformers are imported, which read them then. Threads of OpenMP that spin while they wait take the
    # cores from other processes, and bars of libraries would break the run's own.
    for name, value in {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}.items():
        os.environ.setdefault(name, value)
    parser = make_parser("sft", "Warm-start a policy by imitation of dialogues.")
    parser.add_argument(
        "--check", action="store_true", help="read and tokenise every row, print counts and an example; trains nothing"
    )
    arguments = parser.parse_intermixed_args()

    def command(stop: StopRequest) -> None:
        config = load_sft_config(arguments.config, arguments.overrides)
        if arguments.check:
            check(config)
        else:
            train(config, stop)

    return run_blocking(command)


if __name__ == "__main__":
    exit_process(main())
