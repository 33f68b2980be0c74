"""Bounds of schedules against workloads whose best schedule is known in closed form, and against what was played."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from agentrl.config.schema.simulation import SimulatedEngineSection
from agentrl.types import Termination, ToolResult, ToolStatus, Trajectory, TrajectoryRef, Turn
from benchmarks.rollout import scheduler
from benchmarks.rollout.schedule_bounds import (
    Workload,
    least_of_any_s,
    least_with_reservations_s,
    least_without_recomputation_s,
    workload_of,
)

A_MS, B_MS = 6.0, 0.5
SECTION = SimulatedEngineSection(
    step_ms=A_MS, step_ms_per_request=B_MS, step_ms_per_prefill_token=0.0, kv_tokens=10**8, max_running=256
)


def alike(number: int, *, num_tokens: int = 1000, **changes: Any) -> Workload:
    """Return so many trajectories of one length on one engine, which call no tool."""
    work = Workload(
        num_engines=1,
        section=SECTION,
        reserved_tokens=2000,
        sampled=np.full(number, float(num_tokens)),
        observed=np.zeros(number),
        tool_s=np.zeros(number),
        prompt_tokens=0,
        sampled_held=0.0,
        tool_held_s=0.0,
    )
    return replace(work, **changes)


@pytest.mark.parametrize("number", [1, 2, 100])
def test_of_trajectories_alike_all_at_once_is_the_best(number: int):
    best_s = 1e-3 * 1000 * (A_MS + number * B_MS)
    assert least_of_any_s(alike(number)) == pytest.approx(best_s, rel=2e-3)


def test_no_batch_is_fuller_than_an_engine_allows():
    work = alike(100, section=SECTION.model_copy(update={"max_running": 10}))
    assert least_of_any_s(work) == pytest.approx(1e-3 * 1000 * 10 * (A_MS + 10 * B_MS), rel=2e-3)


def test_steps_are_as_many_as_the_memory_takes():
    # 100 trajectories that hold 500 tokens in the mean of their 1,000 steps; the memory has 5,000: ten at once.
    work = alike(100, section=SECTION.model_copy(update={"kv_tokens": 5000}), sampled_held=100 * 1000 * 500.0)
    assert least_of_any_s(work) == pytest.approx(1e-3 * 1000 * 10 * (A_MS + 10 * B_MS), rel=2e-3)


def test_what_waits_for_a_tool_and_is_not_computed_twice_holds_its_memory():
    work = alike(
        100,
        section=SECTION.model_copy(update={"kv_tokens": 5000}),
        tool_s=np.full(100, 30.0),
        tool_held_s=100 * 30.0 * 1000,
    )
    assert least_of_any_s(work) < 100
    assert least_without_recomputation_s(work) == pytest.approx(100 * 30.0 * 1000 / 5000)


@pytest.mark.parametrize("num_places", [1, 4])
def test_with_room_for_few_at_their_longest_they_come_one_after_the_other(num_places: int):
    work = alike(100, section=SECTION.model_copy(update={"kv_tokens": 2000 * num_places + 1999}))
    rounds = 100 / num_places
    assert least_with_reservations_s(work) == pytest.approx(1e-3 * rounds * 1000 * (A_MS + num_places * B_MS), rel=2e-3)


def test_what_was_played_is_counted_by_token_and_call():
    # A prompt of 3, a turn of 4 that waits 2 s for the longer of two tools, what they say in 2, and an answer of 1.
    results = tuple(ToolResult(status=ToolStatus.OK, text="", wall_time_s=wait_s) for wait_s in (2.0, 1.0))
    record = Trajectory(
        trajectory_id="1-p-0",
        prompt_id="p",
        sample_index=0,
        token_ids=[0] * 10,
        num_prompt_tokens=3,
        response_mask=[0, 0, 0, 1, 1, 1, 1, 0, 0, 1],
        rollout_logprobs=[0.0] * 10,
        version_spans=((3, 0),),
        turns=(Turn(text="", results=results), Turn(text="")),
        termination=Termination.ANSWERED,
    )
    simulation, loaded = scheduler.play(1, kv_tokens=10_000, admission="reserve_max", prefill_ms=0.06)
    [group] = simulation.groups
    group = replace(group, trajectories=[TrajectoryRef(summary=group.trajectories[0].summary, ref=record)])
    work = workload_of(replace(simulation, groups=[group], prompt_tokens={"p": 3}), loaded.config)
    assert (work.sampled, work.observed, work.tool_s) == (5, 2, 2.0)
    assert work.sampled_held == 3 + 4 + 5 + 6 + 9
    assert work.tool_held_s == 2.0 * 6, "of the last token the memory has nothing before the next step"
    assert work.prompt_tokens == 3
    assert work.reserved_tokens == 3 + loaded.config.rollout.max_response_tokens


def test_no_schedule_that_was_played_beats_its_bound():
    options: dict[str, Any] = {"kv_tokens": 2 * 8448, "admission": "reserve_max", "prefill_ms": 0.06}
    static, loaded = scheduler.play(32, static=True, **options)
    reserved, _ = scheduler.play(32, **options)
    work = workload_of(reserved, loaded.config)
    assert least_of_any_s(work) <= static.makespan_s
    assert least_of_any_s(work) <= least_without_recomputation_s(work) <= reserved.makespan_s
    assert least_with_reservations_s(work) <= reserved.makespan_s
    assert reserved.counts.recomputed == 0
