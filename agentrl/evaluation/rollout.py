"""The rollout of an evaluation: every trajectory is on disk soon after it ends, so that a killed one goes on from there."""

import asyncio
import logging
from collections import defaultdict

from agentrl.agent_loop.scheduling.manager import owned_tasks
from agentrl.evaluation.record import EvaluationRecord
from agentrl.observability.reports.failure import warn_of_failures
from agentrl.run.plan import EvaluationRun
from agentrl.types import Group, Termination, TrajectoryRef, TrajectorySummary

logger = logging.getLogger(__name__)

_STEP = 0
"""Step of an evaluation's trajectories."""


async def roll_out_missing(run: EvaluationRun, record: EvaluationRecord) -> list[TrajectorySummary]:
    """Roll out what `record` lacks or lost to the infrastructure, and write it down; returns the new summaries."""
    prompts, samples = run.plan.validation_prompts, run.config.validation.samples_per_prompt
    known = {prompt.prompt_id for prompt in prompts}
    kept: defaultdict[str, list[TrajectoryRef]] = defaultdict(list)
    for summary in record.summaries:
        if summary.prompt_id in known and summary.termination is not Termination.INFRA_ERROR:
            kept[summary.prompt_id].append(TrajectoryRef(summary=summary, ref=None))
    num_kept, num_wanted = sum(map(len, kept.values())), len(prompts) * samples
    if record.samples:
        logger.info("evaluation: %d of %d trajectories are on disk, going on from there", num_kept, num_wanted)
    run.progress.start_rollout("evaluation", num_trajectories=num_wanted - num_kept)
    finished: asyncio.Queue[TrajectoryRef | None] = asyncio.Queue()
    summaries: list[TrajectorySummary] = []

    def finish(trajectory: TrajectoryRef) -> None:
        summaries.append(trajectory.summary)
        finished.put_nowait(trajectory)
        run.progress.finish_trajectory(num_tokens=trajectory.summary.num_response_tokens)

    async with owned_tasks() as tasks:
        tasks.create_task(_write_down(run, finished, prompts_on_disk=set(record.prompts)))
        groups = run.rollouts.start(
            prompts,
            step=_STEP,
            samples_per_prompt=samples,
            held_out=True,
            finished=kept,
            on_finished=finish,
            tasks=tasks,
        )
        for group in groups:
            await group
        finished.put_nowait(None)
    run.rollouts.end_batch()
    await run.rollouts.forget_reports()
    warn_of_failures("evaluation", summaries)
    return summaries


async def _write_down(
    run: EvaluationRun, finished: "asyncio.Queue[TrajectoryRef | None]", *, prompts_on_disk: set[str]
) -> None:
    """Record finished trajectories until None comes, all that wait at a time."""
    prompts = {prompt.prompt_id: prompt for prompt in run.plan.validation_prompts}
    is_open = True
    while is_open:
        waiting = [await finished.get()]
        waiting += [finished.get_nowait() for _ in range(finished.qsize())]
        is_open = waiting[-1] is not None
        refs = [item for item in waiting if item is not None]
        new = dict.fromkeys(ref.summary.prompt_id for ref in refs if ref.summary.prompt_id not in prompts_on_disk)
        if refs:
            groups = [Group(prompt_id=ref.summary.prompt_id, trajectories=[ref]) for ref in refs]
            await run.rollouts.record(groups, [prompts[name] for name in new], step=_STEP, validation=True)
            prompts_on_disk.update(new)
