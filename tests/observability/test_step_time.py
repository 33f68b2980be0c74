"""The splits are written down; what must come of them is worked out by hand."""

from dataclasses import replace
from typing import Any

import pytest

from agentrl.observability.step_time import (
    StepTime,
    advice,
    describe_step,
    end_together,
    num_places,
    place_shares,
    split_metrics,
)
from agentrl.timing import TimeSplit
from agentrl.types import Group, TrajectoryRef, TrajectorySummary
from tests.summaries import short_summary

SUMMARY = short_summary(wall_time_s=0.0)


def made(name: str, finished_at: float, **times: float) -> TrajectorySummary:
    return replace(SUMMARY, trajectory_id=name, finished_at=finished_at, times=TimeSplit(**times))


# Two places, from 0 to 10: A and then C on one, B on the other.
A = made("a", 4.0, generate_s=4.0)
B = made("b", 6.0, generate_s=2.0, judge_queue_s=3.0, tool_s=1.0)
C = made("c", 10.0, admission_wait_s=4.0, generate_s=1.0, engine_queue_s=1.0, tool_s=4.0)
BATCH = [A, B, C]
STEP = StepTime(rollout_s=10.0, update_s=5.0, weight_sync_s=1.0)


def test_who_finishes_early_waits_for_the_last_of_the_batch():
    refs = [TrajectoryRef(summary=summary, ref=None) for summary in BATCH]
    groups = end_together([Group(prompt_id="a", trajectories=refs[:1]), Group(prompt_id="b", trajectories=refs[1:])])
    ended = [trajectory for group in groups for trajectory in group.trajectories]
    assert [each.summary.times.tail_wait_s for each in ended] == [6.0, 4.0, 0.0]
    assert all(sum(_parts(each.summary).values()) == 10.0 for each in ended)


def _parts(summary: TrajectorySummary) -> dict[str, float]:
    return {name: value for name, value in split_metrics([summary]).items() if name.startswith("time/trajectory_")}


def test_the_means_of_the_parts_are_metrics():
    metrics = split_metrics(BATCH)
    assert metrics["time/trajectory_generate_s_mean"] == pytest.approx(7 / 3)
    assert metrics["time/trajectory_judge_queue_s_mean"] == 1.0


def test_places_are_counted_where_most_ran_at_once_and_a_place_is_handed_on_in_no_time():
    assert num_places(BATCH) == 2


def test_the_shares_of_the_place_time_add_up_to_one():
    shares = place_shares(BATCH, STEP, overlaps=False)
    assert sum(shares.values()) == pytest.approx(1.0)
    place_time_s = 2 * 16.0
    assert shares["generate"] == pytest.approx(7.0 / place_time_s)
    assert shares["empty"] == pytest.approx(4.0 / place_time_s)
    assert shares["update"] == pytest.approx(10.0 / place_time_s)


def test_tools_and_reward_wait_for_the_same_judge():
    waits = made("d", 10.0, generate_s=4.0, judge_queue_s=1.0, reward_queue_s=4.0, reward_s=1.0)
    shares = place_shares([waits], STEP, overlaps=True)
    assert (shares["judge_queue"], shares["reward"]) == (0.5, 0.1)


@pytest.mark.parametrize(
    ("shares", "line"),
    [
        ({"generate": 0.59, "judge_queue": 0.3, "tool": 0.11}, "engines idle 41%: the judge's queue is the bottleneck"),
        ({"generate": 0.5, "judge_queue": 0.1, "tool": 0.4}, "engines idle 50%: the tools are the bottleneck"),
        ({"generate": 0.5, "tokenise": 0.5}, "raise `rollout.num_workers`"),
        ({"generate": 0.4, "empty": 0.6}, "the last trajectories are the bottleneck"),
        ({"generate": 0.3, "update": 0.5, "empty": 0.2}, "engines idle 70%: the update is the bottleneck"),
        ({"generate": 0.3, "retry": 0.7}, "episodes that fail"),
        ({"generate": 0.9, "tool": 0.1}, "engines busy 90%: sampling is the bottleneck; raise `rollout.num_engines`"),
        ({"generate": 0.3, "engine_queue": 0.7}, "engines busy 100%: requests wait in the engines"),
        ({}, "no trajectory was made"),
    ],
)
def test_the_advice_is_about_the_largest_idle_part_or_about_the_engines(shares: dict[str, Any], line: str):
    complete = {"engine_queue": 0.0, "generate": 0.0} | shares if shares else shares
    assert line in advice(complete)


def test_the_line_of_a_step_has_its_length_the_largest_shares_and_the_advice():
    line = describe_step(7, BATCH, STEP, overlaps=False, has_agent=False)
    assert line.startswith(
        "step    7  16.0 s; update 31%, generate 22%, tool 16%, empty 12%; engines idle 75%: the update"
    )


def test_engines_that_go_on_during_updates_are_not_idle_for_them():
    ahead = StepTime(rollout_s=4.0, update_s=5.0, weight_sync_s=1.0)
    shares = place_shares(BATCH, ahead, overlaps=True)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares["generate"] == pytest.approx(7.0 / 16.0)
    assert not {"update", "weight_sync", "empty"} & shares.keys()
    line = describe_step(7, BATCH, ahead, overlaps=True, has_agent=False)
    assert (
        "10.0 s; generate 44%, tool 31%, judge queue 19%, engine queue 6%; actor waits 40%, engines idle 50%:" in line
    )
    assert "the tools are the bottleneck" in line


@pytest.mark.parametrize("overlaps", [False, True])
def test_the_time_between_the_turns_of_an_agent_is_the_agents(overlaps: bool):
    slow = made("d", 10.0, generate_s=2.0, tool_s=8.0)
    step = StepTime(rollout_s=10.0, update_s=0.0, weight_sync_s=0.0)
    line = describe_step(7, [slow], step, overlaps=overlaps, has_agent=True)
    assert "; agent 80%, generate 20%" in line
    assert "engines idle 80%: the agent is the bottleneck; make it faster" in line
    assert "tool" not in line
    assert "no trajectory was made" in describe_step(7, [], step, overlaps=overlaps, has_agent=True)


@pytest.mark.parametrize(
    ("step", "line"),
    [
        (StepTime(rollout_s=1.0, update_s=8.0, weight_sync_s=1.0), "actor waits 10%: the update is the bottleneck"),
        (
            StepTime(rollout_s=1.0, update_s=4.0, weight_sync_s=5.0),
            "actor waits 10%: the weight sync is the bottleneck",
        ),
    ],
)
def test_an_actor_that_hardly_waits_is_the_bottleneck_of_a_run_that_rolls_out_ahead(step: StepTime, line: str):
    assert line in describe_step(7, BATCH, step, overlaps=True, has_agent=False)


def test_a_step_without_trajectories_is_described():
    assert "no trajectory was made" in describe_step(7, [], STEP, overlaps=False, has_agent=False)
    assert "no trajectory was made" in describe_step(7, [], STEP, overlaps=True, has_agent=False)


def test_the_stages_of_a_step_are_metrics_that_add_up():
    assert STEP.metrics() == {
        "time/rollout_s": 10.0,
        "time/update_s": 5.0,
        "time/weight_sync_s": 1.0,
        "time/step_s": 16.0,
    }
