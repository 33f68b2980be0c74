"""Advice on recorded steps whose bottleneck is known: named once, kept through noise, replaced only by what is far larger."""

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest

from agentrl.observability.advice.advisor import Advisor, stage_to_name
from agentrl.observability.advice.replay import Stage, StepCosts
from agentrl.observability.step_time import StepTime
from agentrl.timing import TimeSplit
from agentrl.types import TrajectorySummary
from tests.summaries import short_summary

SUMMARY = short_summary(wall_time_s=0.0)

BOTTLENECKS: dict[Stage, tuple[str, str]] = {
    Stage.SAMPLING: ("generate_s", "`rollout.num_engines`"),
    Stage.ENGINE_QUEUE: ("engine_queue_s", "`rollout.num_engines`"),
    Stage.JUDGE_QUEUE: ("judge_queue_s", "`judge.num_slots`"),
    Stage.TOOLS: ("tool_s", "make the tools faster"),
    Stage.REWARD: ("reward_s", "make the reward faster"),
    Stage.TOKENISE: ("tokenise_s", "`rollout.num_workers`"),
    Stage.DISPATCH: ("dispatch_s", "`rollout.num_workers`"),
    Stage.RETRY: ("retry_s", "the warnings say why episodes fail"),
}
DRIVER = {
    Stage.UPDATE: "`actor.num_workers`",
    Stage.WEIGHT_SYNC: "`rollout.max_staleness`",
    Stage.VALIDATION: "`validation.every_steps`",
    Stage.CHECKPOINT: "`checkpoint.every_steps`",
}
USUAL = {"generate_s": 1.0, "tool_s": 0.5, "judge_queue_s": 0.5, "tokenise_s": 0.1, "reward_s": 0.1}


def trajectory(times: Mapping[str, float]) -> TrajectorySummary:
    split = TimeSplit(**times)
    return replace(SUMMARY, finished_at=split.held_s, times=split)


def add(advisor: Advisor, times: Mapping[str, float], driver: Mapping[Stage, float] | None = None) -> str | None:
    """Add a step of eight equal trajectories."""
    batch, driver = [trajectory(times)] * 8, {Stage.UPDATE: 0.5} | dict(driver or {})
    spent = StepTime(
        rollout_s=batch[0].finished_at,
        update_s=driver.get(Stage.UPDATE, 0.0),
        weight_sync_s=driver.get(Stage.WEIGHT_SYNC, 0.0),
    )
    return advisor.add(
        batch,
        spent,
        validation_s=driver.get(Stage.VALIDATION, 0.0),
        checkpoint_s=driver.get(Stage.CHECKPOINT, 0.0),
    )


def said(step: Callable[[Advisor, int], str | None], *, num_steps: int = 60, num_ahead: int = 0) -> Iterator[str]:
    advisor = Advisor(num_ahead=num_ahead)
    yield from filter(None, (step(advisor, number) for number in range(num_steps)))
    yield advisor.conclusion() or ""


@pytest.mark.parametrize("stage", BOTTLENECKS)
def test_each_part_of_a_trajectory_is_named_once_with_its_key(stage: Stage):
    part, key = BOTTLENECKS[stage]
    line, conclusion = said(lambda advisor, _: add(advisor, USUAL | {part: 4.0}))
    assert f" without {stage}; " in line
    assert key in line
    assert f"4.0 s ({4 / sum((USUAL | {part: 4.0, 'update': 0.5}).values()):.0%}) without".partition(" s")[2] in line
    assert f"({4 / sum((USUAL | {part: 4.0, 'update': 0.5}).values()):.0%}) without {stage}, " in conclusion


@pytest.mark.parametrize("stage", DRIVER)
def test_each_stage_of_the_driver_is_named_once_with_its_key(stage: Stage):
    line, conclusion = said(lambda advisor, _: add(advisor, USUAL, {stage: 5.0}))
    assert f" without {stage}; " in line
    assert DRIVER[stage] in line
    assert conclusion.startswith("advice: the last 20 steps (")


def test_the_line_has_seconds_and_share_of_the_steps():
    line, conclusion = said(
        lambda advisor, _: add(advisor, {"generate_s": 1.0, "judge_queue_s": 3.0}, {Stage.UPDATE: 1.0})
    )
    assert line == (
        "advice: the last 6 steps (30 s) would be shorter by 18.0 s (60%) without judge queue; raise `judge.num_slots`, or "
        "add hosts to `judge.hosts`"
    )
    assert conclusion.startswith(
        "advice: the last 20 steps (100 s) would be shorter by 60.0 s (60%) without judge queue, 20.0 s (20%) without "
    )


def test_a_long_tail_is_named_and_not_sampling():
    def step(advisor: Advisor, number: int) -> str | None:
        batch = [trajectory({"generate_s": 1.0})] * 7 + [trajectory({"generate_s": 9.0})]
        return advisor.add(batch, StepTime(rollout_s=9.0, update_s=1.0, weight_sync_s=0.0))

    line, _ = said(step)
    assert (
        "would be shorter by 42.0 s (70%) without sampling tail; lower `rollout.max_response_tokens`" in line
    )  # 9 - 2


def test_of_an_agent_the_tools_time_is_the_agents():
    advisor = Advisor(num_ahead=0, has_agent=True)
    lines = [line for _ in range(6) if (line := add(advisor, USUAL | {"tool_s": 9.0}))]
    assert len(lines) == 1
    assert "without agent; make the agent faster" in lines[0]


def noisy(sizes: Mapping[str, float], *, seed: int, sigma: float) -> Callable[[Advisor, int], str | None]:
    chance = random.Random(seed)
    return lambda advisor, _: add(
        advisor, {part: size * chance.lognormvariate(0.0, sigma) for part, size in sizes.items()}
    )


@pytest.mark.parametrize("seed", range(5))
def test_equal_stages_with_noise_do_not_make_the_advice_flap(seed: int):
    equal = {"generate_s": 1.0, "tool_s": 1.0, "judge_queue_s": 1.0}
    *lines, _ = said(noisy(equal, seed=seed, sigma=0.5), num_steps=200)
    assert len(lines) <= 2


@pytest.mark.parametrize("seed", range(5))
def test_a_larger_stage_is_found_in_noise_and_kept(seed: int):
    mixed = {"generate_s": 1.0, "tool_s": 1.0, "judge_queue_s": 2.5}
    *lines, _ = said(noisy(mixed, seed=seed, sigma=0.5), num_steps=200)
    assert "judge queue" in lines[-1]
    assert len(lines) <= 2, "the second where the first steps misled"


def test_a_single_slow_step_changes_nothing_and_a_lasting_change_is_reported_once():
    def step(advisor: Advisor, number: int) -> str | None:
        slow = 100.0 if number == 30 else 0.0
        return add(advisor, {"generate_s": 3.0, "tool_s": 0.5 + slow}, {Stage.UPDATE: 9.0 if number >= 60 else 1.0})

    first, second, _ = said(step, num_steps=100)
    assert "without sampling;" in first
    assert "without update;" in second


def test_validations_that_take_most_of_the_time_are_named_although_they_are_seldom():
    def step(advisor: Advisor, number: int) -> str | None:
        return add(advisor, USUAL, {Stage.VALIDATION: 60.0 if number % 10 == 9 else 0.0})

    *_, last, _ = said(step, num_steps=80)
    assert "without validation; raise `validation.every_steps`" in last


def test_a_hidden_stage_is_never_named_in_a_run_ahead():
    # Every batch is rolled out in 2.2 s, and the update before it takes 8 s.
    *lines, conclusion = said(lambda advisor, _: add(advisor, USUAL, {Stage.UPDATE: 8.0}), num_ahead=1)
    assert all("without update;" in line for line in lines)
    assert conclusion.endswith(" without update; raise `actor.num_workers` where GPUs or cores are free")


def test_steps_without_a_stage_worth_a_word_get_no_advice():
    even = dict.fromkeys(Stage, 0.04)
    assert stage_to_name([StepCosts(length_s=1.0, saved_s=even)] * 20, None) is None


def test_a_run_of_a_few_steps_has_no_conclusion():
    *lines, conclusion = said(lambda advisor, _: add(advisor, USUAL), num_steps=5)
    assert (lines, conclusion) == ([], "")


def test_a_thousand_trajectories_cost_the_driver_milliseconds():
    chance = random.Random(0)
    batch = [
        trajectory({"generate_s": chance.random() * 9, "tool_s": chance.random() * 5, "judge_queue_s": chance.random()})
        for _ in range(1024)
    ]
    advisor, spent = Advisor(num_ahead=0), StepTime(rollout_s=20.0, update_s=5.0, weight_sync_s=1.0)
    costs_s = list[float]()
    for _ in range(20):
        before = time.thread_time()
        advisor.add(batch, spent)
        costs_s.append(time.thread_time() - before)
    assert min(costs_s) < 0.005  # 0.5 ms on an idle machine
