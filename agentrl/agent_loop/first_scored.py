"""When a group is complete: with the last of its trajectories, or with the last wanted where more were begun."""

import asyncio
from collections.abc import Sequence

from agentrl.types import Group, TrajectoryRef


async def first_scored(prompt_id: str, made: Sequence[asyncio.Task[TrajectoryRef]], *, wanted: int) -> Group:
    """Wait until `wanted` of `made` have a reward, or all have ended, and cancel what still runs.

    Returns:
        The first `wanted` with a reward, and all that were lost by then, in the order of `made`.
    """
    returns = asyncio.FIRST_COMPLETED if wanted < len(made) else asyncio.ALL_COMPLETED
    running = set(made)
    try:
        while running and _num_scored(set(made) - running) < wanted:
            _, running = await asyncio.wait(running, return_when=returns)
    finally:
        for task in running:
            task.cancel()
    ended = [task.result() for task in made if task not in running]
    scored = sorted((m for m in ended if m.summary.reward is not None), key=lambda m: m.summary.finished_at)
    too_late = {made.summary.trajectory_id for made in scored[wanted:]}
    return Group(
        prompt_id=prompt_id, trajectories=[made for made in ended if made.summary.trajectory_id not in too_late]
    )


def _num_scored(tasks: set[asyncio.Task[TrajectoryRef]]) -> int:
    return sum(task.result().summary.reward is not None for task in tasks)
