"""Refilling, empty batches and the position in the data, with rollouts whose rewards are written down."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentrl.agent_loop.scheduling.rollout_stream import SavedGroup
from agentrl.checkpoints.contents import RunState
from agentrl.checkpoints.writer import ROLLOUTS
from agentrl.config.load import load_run_config
from agentrl.data.pass_rates import PassRates
from agentrl.data.prompts import PromptDataset
from agentrl.errors import ConfigError, RolloutError
from agentrl.observability.advice.advisor import Advisor
from agentrl.observability.step_time import StepTime
from agentrl.run.directory import RunDirectory
from agentrl.run.plan import Plan, Run
from agentrl.run.stages import stages_of
from agentrl.run.training_step import Batch, advise, collect_batch, restore, rolling_out
from agentrl.timing import TimeSplit
from agentrl.types import (
    Failure,
    FailureClass,
    Group,
    Prompt,
    Termination,
    TrajectoryRef,
    TrajectorySummary,
)
from tests.summaries import short_summary


class ScriptedRollouts:
    """Gives every prompt a group: mixed rewards where `solvable` says so, all wrong otherwise.

    Of the very first group, `num_lost` members are lost to the judge.
    """

    def __init__(self, solvable: Any, *, num_lost: int = 0, termination: Termination = Termination.ANSWERED) -> None:
        self.solvable = solvable
        self.num_lost = num_lost
        self.termination = termination
        self.rolled_out: list[str] = []
        self.steps: list[int] = []
        self.recorded: list[str] = []
        self.num_agent_reports = 0

    def start(
        self,
        prompts: list[Prompt],
        *,
        step: int,
        samples_per_prompt: int,
        extra_samples: int,
        finished: Any,
        on_finished: Any,
        tasks: asyncio.TaskGroup,
    ) -> list[asyncio.Task[Group]]:
        self.rolled_out += [prompt.prompt_id for prompt in prompts]
        self.steps.append(step)
        groups = [self._group(prompt, samples_per_prompt, policy_version=step - 1) for prompt in prompts]
        return [tasks.create_task(asyncio.sleep(0, group)) for group in groups]

    async def record(self, groups: list[Group], prompts: list[Prompt], *, step: int, validation: bool) -> None:
        self.recorded += [prompt.prompt_id for prompt in prompts]

    def end_batch(self) -> None: ...

    async def log_agents(self) -> None:
        self.num_agent_reports += 1

    async def metrics(self) -> dict[str, float]:
        return {}

    def _group(self, prompt: Prompt, samples: int, *, policy_version: int) -> Group:
        good = self.solvable(len(self.rolled_out), prompt.prompt_id)
        trajectories = [
            TrajectoryRef(
                summary=self._summary(prompt, index, 1.0 if good and index % 2 else 0.0, policy_version), ref=None
            )
            for index in range(samples)
        ]
        if self.rolled_out.index(prompt.prompt_id) == 0:
            trajectories = [
                lose(trajectory) if index < self.num_lost else trajectory
                for index, trajectory in enumerate(trajectories)
            ]
        return Group(prompt_id=prompt.prompt_id, trajectories=trajectories)

    def _summary(self, prompt: Prompt, index: int, reward: float, policy_version: int) -> TrajectorySummary:
        return short_summary(
            prompt.prompt_id,
            index,
            reward=reward,
            num_tool_calls=1,
            policy_version=policy_version,
            termination=self.termination,
        )


def lose(trajectory: TrajectoryRef) -> TrajectoryRef:
    failure = Failure(failure_class=FailureClass.JUDGE, message="judge: no verdict")
    lost = replace(trajectory.summary, reward=None, termination=Termination.INFRA_ERROR, failures=(failure,) * 3)
    return TrajectoryRef(summary=lost, ref=None)


class SilentProgress:
    def start_rollout(self, description: str, *, num_trajectories: int) -> None: ...


def make_run(tmp_path: Path, rollouts: ScriptedRollouts, *overrides: str) -> Run:
    loaded = load_run_config("configs/demo.yaml", [f"run.dir={tmp_path / 'run'}", *overrides])
    data = loaded.config.data
    prompts = PromptDataset(
        data.train_files, prompt_key="prompt", answer_key="answer", system_prompt=None, shuffle=True, seed=0
    )
    directory = RunDirectory(loaded.config)
    plan = Plan(
        loaded=loaded,
        directory=directory,
        tools=[],
        prompts=prompts,
        prompts_of_stages=[prompts],
        validation_prompts=[],
        warnings=[],
        stages=(stages := stages_of(loaded.config)),
        stage=stages[0],
        pass_rates=PassRates(),
    )
    unused: Any = None
    parts: Any = {"rollouts": rollouts, "progress": SilentProgress(), "advisor": Advisor(num_ahead=0)}
    parts |= dict.fromkeys(
        ("nodes", "extra_roles", "engines", "learner", "weight_sync", "checkpoints", "metrics"), unused
    )
    return Run(plan=plan, **parts)


async def collect(run: Run, state: RunState) -> Batch:
    async with rolling_out(run, state) as rollouts:
        return await collect_batch(run, rollouts, state)


async def test_dropped_groups_are_refilled_with_fresh_prompts_up_to_the_cap(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: int(prompt_id[-1]) % 2 == 0)
    run = make_run(tmp_path, rollouts, "algorithm.selection.max_refill_rounds=3")
    batch = await collect(run, RunState())
    assert len(batch.groups) > 12 / 2
    assert len(batch.groups) <= 12
    assert len(rollouts.rolled_out) > 12
    assert len(set(rollouts.rolled_out)) == len(rollouts.rolled_out)
    assert batch.state.prompts_taken == len(rollouts.rolled_out)
    assert batch.metrics["rollout/groups_dropped_none_solved"] == len(rollouts.rolled_out) - len(batch.groups)


async def test_without_refill_rounds_a_step_takes_its_prompts_once(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: int(prompt_id[-1]) % 2 == 0)
    batch = await collect(make_run(tmp_path, rollouts), RunState())
    assert len(rollouts.rolled_out) == 12
    assert batch.state.prompts_taken == 12


async def test_an_empty_batch_is_logged_with_its_own_causes_and_is_no_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rollouts = ScriptedRollouts(lambda count, prompt_id: count > 24)
    batch = await collect(make_run(tmp_path, rollouts), RunState(step=5))
    assert batch.state == RunState(step=5, prompts_taken=36)
    assert batch.metrics["rollout/groups_dropped_none_solved"] == 24
    assert len(batch.groups) == 12
    assert [record.getMessage() for record in caplog.records] == [
        "step 6: no group can be learnt from (12 of 12 none solved); batch 1 of 10",
        "step 6: no group can be learnt from (12 of 12 none solved); batch 2 of 10",
    ]


async def test_every_empty_batch_reports_the_agents_also_the_last_of_a_run(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: False)
    with pytest.raises(RolloutError):
        await collect(make_run(tmp_path, rollouts), RunState())
    assert rollouts.num_agent_reports == 10


async def test_an_agent_whose_time_is_over_ends_the_run_with_the_key_of_its_time(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: False, termination=Termination.TIMEOUT)
    run = make_run(tmp_path, rollouts, "tool_config_path=null", "agent_loop.agent.callable=my_agent.solve")
    with pytest.raises(
        RolloutError, match=r"\(timeout 1920\)\. Raise `rollout\.trajectory_timeout_s`.* `my_agent\.solve`"
    ):
        await collect(run, RunState())


async def test_a_policy_that_never_gets_one_right_ends_the_run_with_the_reason(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: False)
    with pytest.raises(RolloutError, match=r"10 batches in a row .* gave 0 for all 1920 trajectories"):
        await collect(make_run(tmp_path, rollouts), RunState())
    assert len(rollouts.rolled_out) == 120


async def test_every_rolled_out_prompt_is_recorded_dropped_ones_too(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: count > 12)
    await collect(make_run(tmp_path, rollouts), RunState())
    assert rollouts.recorded == rollouts.rolled_out


async def test_a_group_of_which_too_few_were_made_is_replaced_by_a_fresh_prompt(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: True, num_lost=15)
    run = make_run(tmp_path, rollouts, "algorithm.selection.max_refill_rounds=1")
    batch = await collect(run, RunState())
    assert rollouts.rolled_out[0] not in [group.prompt_id for group in batch.groups]
    assert (len(batch.groups), len(rollouts.rolled_out)) == (12, 13)
    assert batch.metrics["rollout/groups_dropped_too_small"] == 1


async def test_a_group_of_which_enough_were_made_is_trained_on(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: True, num_lost=14)
    batch = await collect(make_run(tmp_path, rollouts), RunState())
    assert rollouts.rolled_out[0] in [group.prompt_id for group in batch.groups]


def save_checkpoint(run: Run, state: RunState, scratch: Path, in_hand: list[SavedGroup]) -> None:
    scratch.mkdir()
    (scratch / "groups.json").write_bytes(orjson.dumps(in_hand))
    checkpoints = run.plan.directory.checkpoints
    checkpoints.begin(state.step)
    checkpoints.put_folder(state.step, ROLLOUTS, scratch)
    checkpoints.commit(state)


async def test_a_run_resumes_from_one_checkpoint_as_often_as_its_models_die_after_it(tmp_path: Path):
    run = make_run(tmp_path, ScriptedRollouts(lambda count, prompt_id: True))
    save_checkpoint(run, RunState(step=3, prompts_taken=36), tmp_path / ROLLOUTS, [])
    for _ in range(3):
        batch = await collect(run, RunState(step=3, prompts_taken=36))
        assert len(batch.groups) == 12


@pytest.mark.parametrize(("step", "goes_on"), [(3, False), (4, True)], ids=["boundary", "within"])
async def test_what_was_in_hand_is_rolled_out_within_a_stage_and_not_in_the_one_after_it(
    tmp_path: Path, step: int, goes_on: bool
):
    rollouts = ScriptedRollouts(lambda count, prompt_id: True)
    staged = make_run(
        tmp_path, rollouts, "rollout.max_staleness=1", "run.num_steps=6", "stages=[{num_steps: 3}, {num_steps: 3}]"
    )
    run = replace(staged, plan=replace(staged.plan, stage=staged.plan.stages[1]))
    state = RunState(step=step, prompts_taken=12 * (step + 1))
    in_hand = SavedGroup(number=12 * step, is_whole=False, num_saved=0)
    save_checkpoint(run, state, tmp_path / ROLLOUTS, [in_hand])
    run.plan.prompts.seek(state.prompts_taken)
    await collect(run, state)
    assert (run.plan.prompts.at(in_hand.number).prompt_id in rollouts.rolled_out) == goes_on


async def test_the_steps_that_name_what_is_rolled_out_ahead_count_from_where_the_stage_began(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: True)
    staged = make_run(
        tmp_path, rollouts, "rollout.max_staleness=1", "run.num_steps=6", "stages=[{num_steps: 3}, {num_steps: 3}]"
    )
    run = replace(staged, plan=replace(staged.plan, stage=staged.plan.stages[1]))
    run.plan.prompts.seek(30)
    async with rolling_out(run, RunState(step=3, prompts_taken=30, stage_position=30)) as stream:
        await stream.take(6, step=4)
    assert sorted(set(rollouts.steps)) == [4, 5]


async def test_models_that_died_do_not_send_a_run_back_to_step_0_where_its_checkpoints_have_gone(tmp_path: Path):
    run = make_run(tmp_path, ScriptedRollouts(lambda count, prompt_id: True))
    run.plan.directory.path.mkdir()
    run.plan.directory.note_checkpoint(3)
    with pytest.raises(ConfigError, match=r"checkpoint.dir: .* has no checkpoint, .* step 3"):
        await restore(run)


async def test_what_failed_in_a_step_is_in_its_metrics_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    rollouts = ScriptedRollouts(lambda count, prompt_id: True, num_lost=5)
    with caplog.at_level(logging.WARNING):
        batch = await collect(make_run(tmp_path, rollouts), RunState())
    assert batch.metrics["rollout/failures_judge"] == 15
    assert batch.metrics["rollout/infra_errors"] == 5
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("step 1 rollout: `judge`: 15 tries failed, 5 trajectories lost, such as ")
    assert warning.endswith("-0: judge: no verdict")


async def test_advice_is_logged_when_it_changes_and_not_at_every_step(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    run = make_run(tmp_path, ScriptedRollouts(lambda count, prompt_id: True))
    batch = await collect(run, RunState())
    assert batch.metrics["time/trajectory_generate_s_mean"] == 0.0
    played = [replace(summary, times=TimeSplit(generate_s=1.0), finished_at=1.0) for summary in batch.summaries]
    spent = StepTime(rollout_s=1.0, update_s=3.0, weight_sync_s=0.5)
    with caplog.at_level("INFO"):
        for _ in range(20):
            advise(run, replace(batch, summaries=played), spent, validation_s=0.0, checkpoint_s=0.0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert "18.0 s (67%) without update; raise `actor.num_workers`" in line


async def test_a_run_that_rolls_out_ahead_replaces_dropped_groups_as_well(tmp_path: Path):
    rollouts = ScriptedRollouts(lambda count, prompt_id: int(prompt_id[-1]) % 2 == 0)
    overrides = ["algorithm.selection.max_refill_rounds=9", "rollout.max_staleness=1"]
    batch = await collect(make_run(tmp_path, rollouts, *overrides), RunState())
    assert len(batch.groups) == 12
    consumed = len(rollouts.recorded)
    assert consumed == 12 + batch.metrics["rollout/groups_dropped_none_solved"]
    assert rollouts.recorded == rollouts.rolled_out[:consumed], "what is in hand is not recorded"
    assert len(rollouts.rolled_out) == consumed + 12
    assert batch.metrics["rollout/groups_waiting"] + batch.metrics["rollout/groups_in_flight"] == 12
    assert batch.state.prompts_taken == len(rollouts.rolled_out)
