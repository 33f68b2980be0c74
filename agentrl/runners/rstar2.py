"""Trains a tool-using policy: `python -m agentrl.runners.rstar2 config.yaml [section.key=value ...] [--check]`.

prompt -> agent loop -> engine -> tool call -> judge -> trajectory -> reward -> selection -> advantage -> update -> weight
sync, `run.num_steps` times. Only plain data goes to the workers, and only references and small facts come back here:
tokens travel from worker to worker.
"""

import sys
import time
from dataclasses import replace
from functools import partial

from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.checkpoints.contents import RunState
from agentrl.config.load import LoadedConfig, load_run_config
from agentrl.observability.step_time import StepTime
from agentrl.run.plan import Run, prepare, running
from agentrl.run.preflight.check import CheckLevel, check
from agentrl.run.recovery import surviving_early_deaths, surviving_model_deaths
from agentrl.run.stage_plans import plan_stage, stages_left
from agentrl.run.training_step import advise, collect_batch, finish, restore, rolling_out, save, validate
from agentrl.runners.command_line import exit_process, exit_without_threads, make_parser, run_command


async def train(loaded: LoadedConfig) -> None:
    """Train from the last checkpoint, or from the start, until the actor has been updated `run.num_steps` times."""
    plan = prepare(loaded)  # whatever can be wrong is found here, before any process starts
    # Most runs have one stage; each begins with the checkpoint that the one before it ended with.
    for stage in stages_left(plan):
        # judge, Ray, engines, actor, agent-loop workers
        async with surviving_early_deaths(partial(running, plan_stage(plan, stage))) as run:
            await surviving_model_deaths(run, partial(train_from_checkpoint, run, until=stage.end))
        plan = replace(plan, warnings=[])  # they have been logged
    print(plan.directory.describe_result())


async def train_from_checkpoint(run: Run, *, until: int) -> None:
    """Make the steps that are missing after the last checkpoint, and what is done at the end."""
    state = await restore(run)
    await run.weight_sync.push(version=state.step)
    if state.step == 0:
        run.metrics.log(0, await validate(run, step=0))
    if state.step < until:  # all steps of a run that was killed at its end, or made shorter, are done
        # Where `rollout.max_staleness` is above 0, rollouts go on while the actor is updated.
        async with rolling_out(run, state) as rollouts:
            while state.step < until:
                state = await train_step(run, rollouts, state)
    await finish(run, state)


async def train_step(run: Run, rollouts: RolloutStream, state: RunState) -> RunState:
    """Make one update of the actor: roll out, select, update, sync, log, and keep a checkpoint when it is time."""
    started = time.monotonic()
    await run.checkpoints.raise_failure()  # rather than to train on towards one that counts no more
    batch = await collect_batch(run, rollouts, state)
    state = replace(batch.state, step=state.step + 1)
    rolled_out = time.monotonic()
    run.progress.start_phase(f"step {state.step} update")
    await run.weight_sync.make_room()
    actor_metrics = await run.learner.update(batch.groups, step=state.step)
    updated = time.monotonic()
    await run.weight_sync.push(version=state.step)  # what is being sampled goes on with the new weights
    synced = time.monotonic()
    time_spent = StepTime(rollout_s=rolled_out - started, update_s=updated - rolled_out, weight_sync_s=synced - updated)
    validation = await validate(run, step=state.step)
    validated = time.monotonic()
    state = replace(state, accuracy=validation.get("validation/accuracy"))
    times = time_spent.metrics() | run.checkpoints.metrics() | run.weight_sync.metrics()
    lost = run.nodes.metrics() | await run.extra_roles.metrics()
    run.metrics.log(state.step, batch.metrics | actor_metrics | times | lost | validation)
    logged = time.monotonic()
    await save(run, rollouts, state)
    advise(run, batch, time_spent, validation_s=validated - synced, checkpoint_s=time.monotonic() - logged)
    run.progress.finish_step()
    return state


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = make_parser("rstar2", "Train a tool-using policy with GRPO and Resample-on-Correct.")
    parser.add_argument(
        "--check",
        type=CheckLevel,
        choices=list(CheckLevel),
        metavar="static|full",
        help="check and print the plan instead of training; `--check` is full, `--check=static` needs no network, model or GPU",
    )
    # A bare `--check` must not take the override that follows it for its level.
    words = [f"--check={CheckLevel.FULL}" if word == "--check" else word for word in sys.argv[1:]]
    arguments = parser.parse_intermixed_args(words)
    overrides, level = arguments.overrides, arguments.check

    async def command() -> None:
        loaded = load_run_config(arguments.config, overrides)
        if level is None:
            await train(loaded)
        else:
            await check(loaded, level)

    return run_command(command)


if __name__ == "__main__":
    status = main()
    if any(word.startswith("--check") for word in sys.argv[1:]):
        exit_without_threads(status)
    exit_process(status)
