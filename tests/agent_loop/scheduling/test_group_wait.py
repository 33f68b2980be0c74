"""Groups of which more trajectories are begun than are wanted, in virtual time."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from agentrl import clock
from agentrl.agent_loop.scheduling.group_wait import first_scored
from agentrl.agent_loop.scheduling.rollout_stream import RolledOut, RolloutStream
from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.errors import ConfigError
from agentrl.observability.progress import RunProgress
from agentrl.runners.simulate import start
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.types import Group, TrajectoryRef
from tests.summaries import short_summary

LOST = None


def ref_of(index: int, reward: float | None) -> TrajectoryRef:
    summary = short_summary(sample_index=index, reward=reward, finished_at=clock.now())
    return TrajectoryRef(summary=summary, ref=None)


@dataclass
class Outcome:
    group: list[int] = field(default_factory=list)
    took_s: float = 0.0
    cancelled: set[int] = field(default_factory=set)


def play(trajectories: Sequence[tuple[float, float | None]], *, wanted: int) -> Outcome:
    """Return what becomes of a group whose trajectories take so many seconds and get such rewards."""
    outcome = Outcome()

    async def trajectory_task(index: int, duration_s: float, reward: float | None) -> TrajectoryRef:
        try:
            await asyncio.sleep(duration_s)
        except asyncio.CancelledError:
            outcome.cancelled.add(index)
            raise
        return ref_of(index, reward)

    async def main() -> None:
        tasks = [
            asyncio.create_task(trajectory_task(index, *trajectory)) for index, trajectory in enumerate(trajectories)
        ]
        group = await first_scored("p", tasks, wanted=wanted)
        outcome.took_s = clock.now()
        await asyncio.wait(tasks)
        outcome.group = [ref.summary.sample_index for ref in group.trajectories]

    run_in_virtual_time(main())
    return outcome


def test_the_first_that_have_a_reward_make_the_group_and_the_others_are_ended():
    outcome = play([(9, 1.0), (2, 0.0), (1, 1.0), (5, 1.0)], wanted=2)
    assert outcome == Outcome(group=[1, 2], took_s=2, cancelled={0, 3})


def test_a_lost_trajectory_is_no_substitute_and_stays_on_record():
    outcome = play([(9, 1.0), (2, LOST), (1, 1.0), (5, 1.0)], wanted=2)
    assert outcome == Outcome(group=[1, 2, 3], took_s=5, cancelled={0})


def test_those_that_end_at_the_same_moment_as_the_last_wanted_are_left_out():
    assert play([(1, 1.0), (1, 1.0), (1, 1.0)], wanted=2).group == [0, 1]


def test_without_more_than_are_wanted_all_are_waited_for():
    assert play([(9, 1.0), (2, LOST), (1, 1.0)], wanted=3) == Outcome(group=[0, 1, 2], took_s=9)


@pytest.mark.parametrize(("wanted", "group", "took_s"), [(2, [0, 1], 2), (3, [0, 1, 2], 5)])
def test_existing_trajectories_count_and_keep_their_place(wanted: int, group: list[int], took_s: float):
    async def trajectory_task(index: int, duration_s: float) -> TrajectoryRef:
        await asyncio.sleep(duration_s)
        return ref_of(index, 1.0)

    async def main() -> Group:
        tasks = [asyncio.create_task(trajectory_task(index, duration_s)) for index, duration_s in [(0, 2), (2, 5)]]
        return await first_scored("p", tasks, wanted=wanted, finished=[ref_of(1, 1.0)])

    async def measured() -> tuple[Group, float]:
        return await main(), clock.now()

    group_of_first, ended_at = run_in_virtual_time(measured())
    assert ([ref.summary.sample_index for ref in group_of_first.trajectories], ended_at) == (group, took_s)


def test_the_trajectories_end_with_their_group():
    async def main() -> list[bool]:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(asyncio.sleep(60)) for _ in range(3)]
        for extra in (0, 1):
            group = asyncio.create_task(first_scored("p", tasks, wanted=3 - extra))
            await asyncio.sleep(1)
            group.cancel()
            await asyncio.wait([group])
        await asyncio.wait(tasks)
        return [task.cancelled() for task in tasks]

    assert run_in_virtual_time(main()) == [True] * 3


def roll_out(*overrides: str) -> tuple[list[Group], float, dict[str, float], int]:
    """Return the groups of a step, when there were, the metrics, and the requests that its engines still have."""
    small = [
        "rollout.prompts_per_step=8",
        "rollout.samples_per_prompt=4",
        "simulated.prompt_sigma=0",
        *overrides,
    ]
    loaded = load_run_config("configs/simulate.yaml", small, purpose=Purpose.SIMULATION)

    async def main() -> tuple[list[RolledOut], float, dict[str, float], int]:
        run, progress = await start(loaded), RunProgress(Console(quiet=True), num_steps=1)
        async with RolloutStream(run.rollouts, run.prompts, loaded.config.rollout, num_steps=1, progress=progress) as s:
            taken, took_s = await s.take(8, step=1), clock.now()
            metrics = await run.rollouts.metrics()
        left = sum([(await engine.stats()).num_running for engine in run.engines])
        await run.rollouts.aclose()
        return taken, took_s, metrics, left

    taken, took_s, metrics, left = run_in_virtual_time(main())
    return [item.group for item in taken], took_s, metrics, left


def test_extra_samples_cut_the_tail_are_counted_and_leave_nothing_in_the_engines():
    groups, took_s, metrics, _ = roll_out()
    faster, took_less_s, with_extra, left = roll_out("rollout.extra_samples_per_prompt=4")
    assert [len(group.trajectories) for group in groups] == [4] * 8 == [len(group.trajectories) for group in faster]
    assert took_less_s < 0.9 * took_s
    assert (metrics["rollout/trajectories_surplus"], with_extra["rollout/trajectories_surplus"]) == (0, 32)
    assert left == 0


def test_fewer_than_no_extra_samples_are_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"rollout.extra_samples_per_prompt` is -1"):
        roll_out("rollout.extra_samples_per_prompt=-1")
