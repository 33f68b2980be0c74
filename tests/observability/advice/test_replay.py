"""Costs of stages, against closed forms; two against simulations in virtual time."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentrl.config.load import load_run_config
from agentrl.config.validation.relations import Purpose
from agentrl.observability.advice.replay import Replay, Stage, StepCosts
from agentrl.observability.step_time import StepTime
from agentrl.runners.simulate import Simulation, simulate
from agentrl.simulation.virtual_time import run_in_virtual_time
from agentrl.timing import TimeSplit
from agentrl.types import TrajectorySummary
from tests.summaries import short_summary

PART_OF = {
    Stage.SAMPLING: "generate_s",
    Stage.ENGINE_QUEUE: "engine_queue_s",
    Stage.JUDGE_QUEUE: "judge_queue_s",
    Stage.TOOLS: "tool_s",
    Stage.REWARD: "reward_s",
    Stage.TOKENISE: "tokenise_s",
    Stage.DISPATCH: "dispatch_s",
    Stage.RETRY: "retry_s",
}


def job(*, entered_at: float = 0.0, **times: float) -> TrajectorySummary:
    split = TimeSplit(**times)
    summary = short_summary(wall_time_s=0.0)
    return replace(summary, finished_at=entered_at + split.admission_wait_s + split.held_s, times=split)


def queued(jobs: Iterable[dict[str, float]], *, num_places: int, entered_at: float = 0.0) -> list[TrajectorySummary]:
    """Return the jobs as they run on so few places, first come, first served."""
    places, played = [entered_at] * num_places, list[TrajectorySummary]()
    for times in jobs:
        place = min(range(num_places), key=places.__getitem__)
        played.append(job(entered_at=entered_at, admission_wait_s=places[place] - entered_at, **times))
        places[place] = played[-1].finished_at
    return played


def last_end(batch: Iterable[TrajectorySummary]) -> float:
    return max(summary.finished_at for summary in batch)


def step(rollout_s: float, update_s: float = 0.0, weight_sync_s: float = 0.0) -> StepTime:
    return StepTime(rollout_s=rollout_s, update_s=update_s, weight_sync_s=weight_sync_s)


def replayed(batch: list[TrajectorySummary], spent: StepTime, **others: float) -> StepCosts:
    return Replay(num_ahead=0).add(batch, spent, **others)


@pytest.mark.parametrize("stage", PART_OF)
def test_a_part_of_the_last_trajectory_costs_what_it_is_longer_than_the_others(stage: Stage):
    batch = [job(**{PART_OF[stage]: 8.0}), job(generate_s=3.0, tool_s=2.0)]
    costs = replayed(batch, step(9.0, update_s=1.0))
    total_s = costs.saved_s[stage] + (costs.saved_s[Stage.TAIL] if stage is Stage.SAMPLING else 0.0)
    other_s = 2.0 if stage is Stage.SAMPLING else 3.0 if stage is Stage.TOOLS else 5.0
    assert (costs.length_s, total_s) == pytest.approx((10.0, 8.0 - other_s))


def test_a_wait_that_another_trajectory_hides_costs_nothing():
    costs = replayed([job(generate_s=10.0), job(generate_s=2.0, judge_queue_s=7.0)], step(10.0))
    assert costs.saved_s[Stage.JUDGE_QUEUE] == 0.0


def test_stages_of_the_driver_cost_their_time():
    costs = replayed(
        [job(generate_s=4.0)], step(4.5, update_s=3.0, weight_sync_s=0.5), validation_s=2.0, checkpoint_s=1.0
    )
    assert costs.length_s == pytest.approx(11.0)
    driver = (Stage.UPDATE, Stage.WEIGHT_SYNC, Stage.VALIDATION, Stage.CHECKPOINT)
    assert [costs.saved_s[stage] for stage in driver] == pytest.approx([3.0, 0.5, 2.0, 1.0])


def test_the_tail_costs_what_the_longest_sampling_exceeds_the_mean_and_sampling_the_rest():
    costs = replayed([job(generate_s=9.0), job(generate_s=2.0), job(generate_s=1.0)], step(9.0))
    assert (costs.saved_s[Stage.TAIL], costs.saved_s[Stage.SAMPLING]) == pytest.approx((9.0 - 4.0, 4.0))


def test_a_place_that_is_free_earlier_takes_the_next_trajectory_earlier():
    # Equal jobs on 2 places: 12 of them make 6 waves, with and without the queue.
    batch = queued([{"generate_s": 2.0, "judge_queue_s": 1.0}] * 12, num_places=2)
    costs = replayed(batch, step(last_end(batch)))
    assert costs.length_s == pytest.approx(6 * 3.0)
    assert costs.saved_s[Stage.JUDGE_QUEUE] == pytest.approx(6 * 1.0)
    assert costs.saved_s[Stage.TAIL] == pytest.approx(0.0)


def test_queued_jobs_are_replayed_on_their_places_and_not_in_their_chains():
    # By hand: places A and B; without queues the third job goes to A at 1 and the fourth to B at 3, which then ends at 5.
    jobs = [
        {"generate_s": 1.0, "judge_queue_s": 4.0},
        {"generate_s": 3.0},
        {"generate_s": 6.0 - 2.0},
        {"generate_s": 2.0},
    ]
    batch = queued(jobs, num_places=2)
    assert last_end(batch) == 7.0
    assert replayed(batch, step(7.0)).saved_s[Stage.JUDGE_QUEUE] == pytest.approx(7.0 - 5.0)


def test_a_batch_that_was_refilled_is_replayed_round_by_round():
    first = [job(tool_s=4.0), job(tool_s=1.0)]
    second = [job(entered_at=4.5, tool_s=2.0, generate_s=1.0), job(entered_at=4.5, generate_s=2.5)]
    costs = replayed([*first, *second], step(7.5))
    assert costs.saved_s[Stage.TOOLS] == pytest.approx(4.0 + (3.0 - 2.5))


def test_a_share_of_a_stage_may_be_kept():
    costs = Replay(num_ahead=0, kept=0.5).add([job(generate_s=1.0, tool_s=6.0)], step(7.0, update_s=2.0))
    assert (costs.saved_s[Stage.TOOLS], costs.saved_s[Stage.UPDATE]) == pytest.approx((3.0, 1.0))


def ahead(update_s: float, generate_s: float, *, num_ahead: int = 1, num_steps: int = 30) -> dict[Stage, float]:
    """Return the costs of the last ten steps of a run ahead, each batch of which is one job."""
    replay, costs, now, entries = Replay(num_ahead=num_ahead), list[StepCosts](), 0.0, [0.0] * num_ahead
    for _ in range(num_steps):
        entries.append(now)
        batch = [job(entered_at=entries.pop(0), generate_s=generate_s)]
        wait_s = max(0.0, last_end(batch) - now)
        costs.append(replay.add(batch, step(wait_s, update_s=update_s)))
        now += wait_s + update_s
        assert sum(each.length_s for each in costs) == pytest.approx(now)
    return {stage: sum(each.saved_s[stage] for each in costs[-10:]) / 10 for stage in Stage}


def test_a_stage_that_hides_behind_another_costs_nothing():
    # A batch enters a step before it is taken: steps of `period` with 2 period = rollout + update, or of the update alone.
    costs = ahead(update_s=5.0, generate_s=3.0)
    assert costs[Stage.SAMPLING] == pytest.approx(0.0)
    assert costs[Stage.UPDATE] == pytest.approx(5.0 - 1.5)  # then a batch of 3 s is begun every 1.5 s
    costs = ahead(update_s=2.0, generate_s=10.0)
    assert costs[Stage.SAMPLING] == pytest.approx(6.0 - 2.0)
    assert costs[Stage.UPDATE] == pytest.approx(6.0 - 5.0)


def test_without_running_ahead_the_same_stages_cost_all_of_their_time():
    costs = ahead(update_s=5.0, generate_s=3.0, num_ahead=0)
    assert (costs[Stage.SAMPLING], costs[Stage.UPDATE]) == pytest.approx((3.0, 5.0))


def test_a_step_without_trajectories_is_replayed():
    costs = replayed([], step(1.0, update_s=2.0))
    assert (costs.length_s, costs.saved_s[Stage.UPDATE], costs.saved_s[Stage.SAMPLING]) == pytest.approx(
        (3.0, 2.0, 0.0)
    )


def play(tmp_path: Path, tool: dict[str, Any]) -> Simulation:
    """Roll out a batch in virtual time, two trajectories for each place."""
    tools = tmp_path / "tools.yaml"
    lines = [f"      {name}: {value}" for name, value in tool.items()]
    tools.write_text(
        "\n".join(["tools:", "  - class_name: agentrl.simulation.tool.SimulatedTool", "    config:", *lines])
    )
    overrides = [
        "rollout.prompts_per_step=8",
        "rollout.samples_per_prompt=8",
        "rollout.num_engines=2",
        "rollout.max_concurrent_trajectories=16",
        "rollout.max_response_tokens=2048",
        f"tool_config_path={tools}",
    ]
    return run_in_virtual_time(
        simulate(load_run_config("configs/simulate.yaml", overrides, purpose=Purpose.SIMULATION))
    )


def promised(simulation: Simulation, stage: Stage, *, kept: float) -> float:
    return Replay(num_ahead=0, kept=kept).add(simulation.summaries, step(simulation.makespan_s)).saved_s[stage]


@pytest.mark.slow
def test_tools_of_half_the_time_shorten_a_simulated_rollout_as_promised(tmp_path: Path):
    slow = play(tmp_path, {"time_median_s": 8.0, "max_time_s": 60.0, "min_time_s": 0.0})
    fast = play(tmp_path, {"time_median_s": 4.0, "max_time_s": 30.0, "min_time_s": 0.0})
    saved_s = slow.makespan_s - fast.makespan_s
    assert saved_s > 0.2 * slow.makespan_s
    assert promised(slow, Stage.TOOLS, kept=0.5) == pytest.approx(saved_s, rel=0.05)


@pytest.mark.slow
def test_slots_for_all_shorten_a_simulated_rollout_as_promised(tmp_path: Path):
    tool = {"time_median_s": 2.0, "time_sigma": 0.5, "max_time_s": 20.0}
    scarce, enough = play(tmp_path, tool | {"num_slots": 4}), play(tmp_path, tool)
    saved_s = scarce.makespan_s - enough.makespan_s
    assert saved_s > 0.2 * scarce.makespan_s
    assert promised(scarce, Stage.JUDGE_QUEUE, kept=0.0) == pytest.approx(saved_s, rel=0.05)
