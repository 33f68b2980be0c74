"""Completion of a group: when all its trajectories have ended, or when enough of a larger number have a reward."""

import asyncio
from collections.abc import Sequence, Set

from agentrl.types import Group, TrajectoryRef


async def first_scored(
    prompt_id: str, tasks: Sequence[asyncio.Task[TrajectoryRef]], *, wanted: int, finished: Sequence[TrajectoryRef] = ()
) -> Group:
    """Wait until `wanted` trajectories, `finished` ones included, have a reward, or all have ended; cancel the rest.

    Returns:
        The first `wanted` with a reward, and all that were lost by then, in the order of their sample index.
    """
    returns = asyncio.FIRST_COMPLETED if wanted < len(finished) + len(tasks) else asyncio.ALL_COMPLETED
    running = set(tasks)
    try:
        while running and sum(ref.summary.reward is not None for ref in _ended(tasks, running, finished)) < wanted:
            _, running = await asyncio.wait(running, return_when=returns)
    finally:
        for task in running:
            task.cancel()
    ended = _ended(tasks, running, finished)
    scored = sorted((ref for ref in ended if ref.summary.reward is not None), key=lambda ref: ref.summary.finished_at)
    too_late = {ref.summary.trajectory_id for ref in scored[wanted:]}
    return Group(prompt_id=prompt_id, trajectories=[ref for ref in ended if ref.summary.trajectory_id not in too_late])


def _ended(
    tasks: Sequence[asyncio.Task[TrajectoryRef]],
    running: Set[asyncio.Task[TrajectoryRef]],
    finished: Sequence[TrajectoryRef],
) -> list[TrajectoryRef]:
    ended = [*finished, *(task.result() for task in tasks if task not in running)]
    return sorted(ended, key=lambda ref: ref.summary.sample_index)
