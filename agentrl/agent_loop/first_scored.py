"""When a group is complete: with the last of its trajectories, or with the last wanted where more were begun."""

import asyncio
from collections.abc import Sequence, Set

from agentrl.types import Group, TrajectoryRef


async def first_scored(
    prompt_id: str, made: Sequence[asyncio.Task[TrajectoryRef]], *, wanted: int, finished: Sequence[TrajectoryRef] = ()
) -> Group:
    """Wait until `wanted` of `made` have a reward, or all have ended, and cancel what still runs.

    Args:
        prompt_id: of the group.
        made: those that are under way.
        wanted: how many are to have a reward.
        finished: those that were there before, each of which counts.

    Returns:
        The first `wanted` with a reward, and all that were lost by then, in the order of their sample index.
    """
    returns = asyncio.FIRST_COMPLETED if wanted < len(finished) + len(made) else asyncio.ALL_COMPLETED
    running = set(made)
    try:
        while running and _num_scored(_ended(made, running, finished)) < wanted:
            _, running = await asyncio.wait(running, return_when=returns)
    finally:
        for task in running:
            task.cancel()
    ended = _ended(made, running, finished)
    scored = sorted((m for m in ended if m.summary.reward is not None), key=lambda m: m.summary.finished_at)
    too_late = {made.summary.trajectory_id for made in scored[wanted:]}
    return Group(
        prompt_id=prompt_id, trajectories=[made for made in ended if made.summary.trajectory_id not in too_late]
    )


def _ended(
    made: Sequence[asyncio.Task[TrajectoryRef]],
    running: Set[asyncio.Task[TrajectoryRef]],
    finished: Sequence[TrajectoryRef],
) -> list[TrajectoryRef]:
    ended = [*finished, *(task.result() for task in made if task not in running)]
    return sorted(ended, key=lambda made: made.summary.sample_index)


def _num_scored(ended: Sequence[TrajectoryRef]) -> int:
    return sum(made.summary.reward is not None for made in ended)
