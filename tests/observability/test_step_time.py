"""The splits are written down; what must come of them is worked out by hand."""

from dataclasses import replace

import pytest

from agentrl.observability.step_time import StepTime, end_together, split_metrics
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


def test_the_stages_of_a_step_are_metrics_that_add_up():
    assert STEP.metrics() == {
        "time/rollout_s": 10.0,
        "time/update_s": 5.0,
        "time/weight_sync_s": 1.0,
        "time/step_s": 16.0,
    }
