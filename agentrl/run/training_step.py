"""The parts of a training step that are neither rollout nor update: refilling, validation, checkpoints, the end."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from agentrl.agent_loop.scheduling.rollout_stream import RolloutStream
from agentrl.algorithms.group_filter import DropReport, fates, select
from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.writer import PASS_RATES, ROLLOUTS
from agentrl.data.columns import category_of
from agentrl.data.pass_rates import PassRates
from agentrl.errors import RolloutError
from agentrl.observability.logs import describe_repeats
from agentrl.observability.metrics_file import count_survived
from agentrl.observability.reports.failure import warn_of_failures
from agentrl.observability.reports.reward import reward_warnings
from agentrl.observability.reports.reward_curve import draw_reward_curve
from agentrl.observability.reports.tools import describe_failing_tools
from agentrl.observability.rollout_metrics import summarise, validation_metrics
from agentrl.observability.step_time import StepTime, split_metrics
from agentrl.pages.run_report import try_to_write_run_report
from agentrl.run.plan import EvaluationRun, Run
from agentrl.types import Group, TrajectorySummary

logger = logging.getLogger(__name__)

_MAX_EMPTY_BATCHES = 10
"""Batches in a row without a learning signal, after which going on is a waste."""

_FIRST_STEPS = 3
"""Steps in which a reward that teaches nothing is warned of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The groups of one update, and the rollouts behind them."""

    groups: list[Group]
    summaries: list[TrajectorySummary]
    """Summaries of all trajectories that were rolled out."""
    metrics: dict[str, float]
    state: RunState
    """Run state with the data position after this batch; its step is still the last finished one."""


@contextlib.asynccontextmanager
async def rolling_out(run: Run, state: RunState) -> AsyncIterator[RolloutStream]:
    """Roll out the training prompts while the context is open, starting with pending groups of the last checkpoint."""
    async with RolloutStream(
        run.rollouts,
        run.plan.prompts,
        run.config.rollout,
        num_steps=run.config.run.num_steps,
        progress=run.progress,
        first_step=run.plan.stage.start + 1,
        first_position=state.stage_position,
    ) as rollouts:
        directory = run.plan.directory
        latest = directory.checkpoints.latest()
        # What the stage before this one left undone is of other lengths and other prompts.
        if latest is not None and not run.plan.stage.begins_with(latest.step):
            folder = directory.in_hand / f"resume_{latest.step:06d}"
            shutil.rmtree(folder, ignore_errors=True)  # models that died since have begun from here before
            directory.checkpoints.fetch_folder(latest.step, ROLLOUTS, folder)
            await rollouts.restore(folder, source=f"{directory.checkpoints.url_of(latest.step)}/{ROLLOUTS}")
        yield rollouts


async def collect_batch(run: Run, rollouts: RolloutStream, state: RunState) -> Batch:
    """Take rolled-out prompts, and refill dropped groups with fresh ones, up to `algorithm.selection.max_refill_rounds` rounds.

    A batch without any group to learn from is logged, and followed by another one.

    Raises:
        RolloutError: ten batches in a row taught nothing.
    """
    rollout, selection = run.config.rollout, run.config.algorithm.selection
    step, rounds_of_batch = state.step + 1, selection.max_refill_rounds + 1
    kept: list[Group] = []
    drops = drops_of_batch = DropReport()
    seen: list[TrajectorySummary] = []
    for number in range(1, rounds_of_batch * _MAX_EMPTY_BATCHES + 1):
        taken = await rollouts.take(rollout.prompts_per_step - len(kept), step=step)
        rolled_out = [item.group for item in taken]
        await run.rollouts.record(rolled_out, [item.prompt for item in taken], step=step, validation=False)
        run.rollouts.end_batch()
        groups, report = select(rolled_out, selection, seed=run.config.run.seed)
        run.plan.directory.trajectories.record_fates(step, fates(rolled_out, groups, selection))
        kept += groups
        drops_of_batch += report
        seen += _summaries(rolled_out)
        if len(kept) == rollout.prompts_per_step or (kept and number % rounds_of_batch == 0):
            break
        if number % rounds_of_batch == 0:
            await _report_empty_batch(run, step, number // rounds_of_batch, drops_of_batch)
            drops, drops_of_batch = drops + drops_of_batch, DropReport()
    warn_of_failures(f"step {step} rollout", seen)
    hints = reward_warnings(seen, run.config.reward, selection, run.config.agent_loop.agent)
    if not kept:
        raise _nothing_to_learn(run, step, [*describe_failing_tools(seen).values(), *hints])
    if step <= _FIRST_STEPS:
        for line in hints:
            logger.warning("step %d rollout: %s", step, line)
    run.plan.pass_rates.record(seen, selection)
    metrics = summarise(seen, selection) | split_metrics(seen) | (drops + drops_of_batch).metrics()
    metrics |= {"rollout/groups_kept": float(len(kept))} | rollouts.metrics() | await run.rollouts.metrics()
    state = replace(state, prompts_taken=run.plan.prompts.position)
    return Batch(groups=kept, summaries=seen, metrics=metrics, state=state)


async def _report_empty_batch(run: Run, step: int, number: int, drops: DropReport) -> None:
    logger.warning(
        "step %d: no group can be learnt from (%s); batch %d of %d",
        step,
        drops.describe_empty_batch(),
        number,
        _MAX_EMPTY_BATCHES,
    )
    await run.rollouts.log_agents()


def _nothing_to_learn(run: Run, step: int, reasons: Sequence[str]) -> RolloutError:
    likely = (
        f"The prompts are too easy or too hard for this policy, or the reward `{run.config.reward.label}` is broken: see "
        "`trajectories/`"
    )
    return RolloutError(
        f"step {step}: {_MAX_EMPTY_BATCHES} batches in a row had no group with both right and wrong answers. "
        f"{'; '.join(reasons) or likely}."
    )


def advise(run: Run, batch: Batch, spent: StepTime, *, validation_s: float, checkpoint_s: float) -> None:
    """Log how to shorten the steps, if that changed with this one."""
    advice = run.advisor.add(batch.summaries, spent, validation_s=validation_s, checkpoint_s=checkpoint_s)
    if advice is not None:
        logger.info("%s", advice)


async def validate(run: Run, *, step: int) -> dict[str, float]:
    """Measure the policy on the held-out prompts if `validation.every_steps` asks for it; otherwise return no metrics."""
    every = run.config.validation.every_steps
    if every == 0 or (step % every != 0 and step != run.config.run.num_steps):
        return {}
    return measured(run, await roll_out_held_out(run, step=step))


def measured(run: EvaluationRun, summaries: Sequence[TrajectorySummary]) -> dict[str, float]:
    """Return the metrics of the held-out prompts."""
    column = run.config.validation.category_column
    values = {prompt.prompt_id: category_of(prompt, column) for prompt in run.plan.validation_prompts if column}
    return validation_metrics(
        summaries,
        run.config.algorithm.selection,
        samples_per_prompt=run.config.validation.samples_per_prompt,
        data_sets={prompt.prompt_id: prompt.data_set for prompt in run.plan.validation_prompts},
        categories={name: f"{column}={value}" for name, value in values.items() if value is not None},
    )


async def roll_out_held_out(run: EvaluationRun, *, step: int, name: str = "validation") -> list[TrajectorySummary]:
    """Roll out the held-out prompts with the policy after update `step`, and record the trajectories.

    `name` is for messages.

    Running training rollouts continue: the weights do not change meanwhile, engines would idle in the tail, and the held-out
    prompts enter first.
    """
    prompts, samples = run.plan.validation_prompts, run.config.validation.samples_per_prompt
    run.progress.start_rollout(f"step {step} {name}", num_trajectories=len(prompts) * samples)
    groups = await run.rollouts.collect(
        prompts,
        step=step,
        samples_per_prompt=samples,
        held_out=True,
        on_finished=lambda summary: run.progress.finish_trajectory(num_tokens=summary.num_response_tokens),
    )
    await run.rollouts.record(groups, prompts, step=step, validation=True)
    run.rollouts.end_batch()
    await run.rollouts.forget_reports()  # so that the next step's judge metrics cover training only
    summaries = _summaries(groups)
    warn_of_failures(f"step {step} {name}", summaries)
    return summaries


async def restore(run: Run) -> RunState:
    """Resume from the last checkpoint: discard later records, and load the actor and the position in the data."""
    directory = run.plan.directory
    directory.refuse_lost_checkpoints()  # they may have been lost since the start, before the models died
    latest = directory.checkpoints.latest()
    state, last_step, pass_rates = latest or RunState(), -1, PassRates()
    if latest is not None:
        last_step, pass_rates = latest.step, directory.checkpoints.read(latest.step, PASS_RATES, PassRates.decode)
    run.metrics.take_back(after_step=last_step)
    directory.trajectories.take_back(after_step=last_step)
    run.plan.prompts.seek(state.prompts_taken)
    run.plan.pass_rates.go_back_to(pass_rates)
    if latest is not None:
        await run.learner.load(directory.checkpoints.url_of(state.step))
        logger.info("resumed from %s", directory.checkpoints.url_of(state.step))
    state = await _enter_stage(run, state)
    run.progress.resume(num_steps_done=state.step)
    return state


async def _enter_stage(run: Run, state: RunState) -> RunState:
    """Apply the stage's changes; in a run that resumes within the stage, only those that no checkpoint holds."""
    stage = run.plan.stage
    if stage.begins_with(state.step):
        logger.info(
            "stage %d of %d: %d steps, %d prompts (%d left out)",
            stage.index + 1,
            len(run.plan.stages),
            stage.end - stage.start,
            len(run.plan.prompts),
            run.plan.prompts.num_left_out,
        )
        if stage.has_own_data:
            run.plan.prompts.seek(run.plan.first_epoch * len(run.plan.prompts))
        state = replace(state, stage_position=run.plan.prompts.position)
        if stage.reset_optimiser:
            await run.learner.reset_optimiser(step=state.step)
    if stage.reference_step > 0:
        await run.learner.load_reference(run.plan.directory.checkpoints.url_of(stage.reference_step))
    return state


async def save(run: Run, rollouts: RolloutStream, state: RunState) -> None:
    """Start a checkpoint of `state` if it is due; training may continue when this returns."""
    every = run.config.checkpoint.every_steps
    if state.step % every == 0 or state.step == run.config.run.num_steps:
        run.progress.start_phase(f"step {state.step} checkpoint")
        await run.checkpoints.save(state, rollouts, run.plan.pass_rates)


async def finish(run: Run, state: RunState) -> None:
    """End the stage; after the last one export the policy, draw the curve, write the report, and mark the run as finished."""
    await run.checkpoints.settle()
    if (advice := run.advisor.conclusion()) is not None:
        logger.info("%s", advice)
    if repeats := describe_repeats():
        logger.info("repeated warnings: %s", repeats)
    if run.plan.stage.index + 1 < len(run.plan.stages):
        return
    run.progress.start_phase("export")
    directory = run.plan.directory
    await run.learner.export(str(directory.policy.begin()))
    directory.policy.take()
    draw_reward_curve(directory.metrics, directory.reward_curve, title=directory.path.name)
    await asyncio.to_thread(try_to_write_run_report, directory.path, advice=advice or "")
    policy, curve = str(directory.policy.path), str(directory.reward_curve)
    # Some may have died since the last row was written.
    survived = count_survived(directory.metrics) | run.plan.history.counts()
    survived["rollout/engine_deaths"] += run.engines.take_num_deaths()
    directory.finish(
        {
            "num_steps": run.config.run.num_steps,
            "policy": policy,
            "reward_curve": curve,
            "survived": survived,
        }
    )


def _summaries(groups: Sequence[Group]) -> list[TrajectorySummary]:
    return [trajectory.summary for group in groups for trajectory in group.trajectories]
